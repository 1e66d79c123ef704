// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "csrc/partition/passes.h"
#include "csrc/program/analysis.h"
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

void Finish(Program& program, const UpdateHints& updates) {
  for (const program::Output& output : program.outputs) {
    if (output.becomes >= 0) program.inputs[output.becomes].donated = true;
  }
  std::vector<bool> is_output(program.values.size(), false);
  for (const program::Output& output : program.outputs) is_output[output.value] = true;
  std::vector<int> input_of(program.values.size(), -1);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    input_of[program.inputs[i].value] = static_cast<int>(i);
  }
  std::vector<int> last_use(program.values.size(), -1);
  int last_failing = -1;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (ValueId v : program.instructions[i].operands) {
      if (v != program::kNoValue) last_use[v] = static_cast<int>(i);
    }
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
    const bool is_input = input_of[v] >= 0;
    const bool may_write =
        !is_input || (program.inputs[input_of[v]].donated && static_cast<int>(i) > last_failing);
    const bool used_twice =
        std::count(instruction.operands.begin(), instruction.operands.end(), v) > 1;
    if (!is_output[v] && last_use[v] == static_cast<int>(i) && may_write && !used_twice &&
        old_value.type == new_value.type && old_value.grid == new_value.grid &&
        old_value.sharding == new_value.sharding && old_value.windows.empty()) {
      instruction.updates = hint->second;
    }
  }
  program::InsertFrees(program);
}

}  // namespace spmd::partition
