// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "csrc/partition/passes.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

bool MayFailOnValues(const Program& program, const Instruction& instruction) {
  if (instruction.code != OpCode::kCall) return false;
  const rules::Rule* rule = rules::Find(instruction.op);
  return rule == nullptr || !rule->elementwise ||
         rules::MayFail(rule->facts, program.values[instruction.results[0]].type.dtype);
}

namespace {

// True if the call looks up indices that the program is given.
bool HasGivenIndices(const Program& program, const Instruction& call,
                     const program::DefUse& facts) {
  if (rules::FactsOf(call.op).fails != rules::Failure::kOnIndices) return false;
  if (call.operands.size() < 2) return false;
  ValueId index = call.operands[1];
  while (index != program::kNoValue && facts.maker(index) >= 0) {
    const Instruction& made = program.instructions[facts.maker(index)];
    if (made.code != OpCode::kCall || !rules::FactsOf(made.op).same_elements) return false;
    index = made.operands[0];
  }
  return index != program::kNoValue;
}

}  // namespace

int LastThatMayFail(const Program& program) {
  const program::DefUse facts(program);
  for (int i = static_cast<int>(program.instructions.size()); i-- > 0;) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code != OpCode::kCall || instruction.results.empty()) continue;
    const DType type = program.values[instruction.results[0]].type.dtype;
    if (rules::MayFail(rules::FactsOf(instruction.op), type) &&
        !HasGivenIndices(program, instruction, facts)) {
      return i;
    }
  }
  return -1;
}

void Finish(Program& program, const UpdateHints& updates, int may_write_after) {
  for (const program::Output& output : program.outputs) {
    if (output.becomes >= 0) program.inputs[output.becomes].donated = true;
  }
  const program::DefUse facts(program);
  int last_failing = std::max(may_write_after, -1);
  for (size_t i = 0; may_write_after == kAfterAllCalls && i < program.instructions.size(); ++i) {
    if (MayFailOnValues(program, program.instructions[i])) last_failing = static_cast<int>(i);
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    if (instruction.code != OpCode::kCall || instruction.results.empty()) continue;
    const ValueId r = instruction.results[0];
    const auto hint = updates.find(r);
    if (hint == updates.end()) continue;
    const ValueId v = instruction.operands[hint->second];
    const program::Value& old_value = program.values[v];
    const program::Value& new_value = program.values[r];
    // The memory of an input is written only after everything that can fail.
    const int input = facts.input(v);
    const bool may_write =
        input < 0 || (program.inputs[input].donated && static_cast<int>(i) > last_failing);
    const bool used_twice =
        std::count(instruction.operands.begin(), instruction.operands.end(), v) > 1;
    if (!facts.is_output(v) && facts.last_user(v) == static_cast<int>(i) && may_write &&
        !used_twice && old_value.type == new_value.type && old_value.grid == new_value.grid &&
        old_value.sharding == new_value.sharding && old_value.windows.empty()) {
      instruction.updates = hint->second;
    }
  }
  program::InsertFrees(program);
}

}  // namespace spmd::partition
