// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/recomputed.h"

#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/rules/registry.h"

namespace spmd::timeline {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

// The attributes without those that speak of tiles, which differ where shardings do, and without
// numbers that are passed when the program runs, which are taken to be equal.
Attributes Global(const Attributes& local) {
  Attributes global;
  for (const auto& [name, attr] : local) {
    const bool left_out = std::holds_alternative<Expr>(attr) ||
                          std::holds_alternative<std::vector<Expr>>(attr) ||
                          std::holds_alternative<RuntimeScalar>(attr);
    if (!left_out) global.Set(name, attr);
  }
  return global;
}

}  // namespace

std::vector<bool> Recomputed(const Program& program) {
  std::vector<bool> recomputed(program.instructions.size(), false);
  std::vector<int64_t> number(program.values.size(), -1);  // equal values have one
  int64_t next = 0;
  for (const program::Input& input : program.inputs) number[input.value] = next++;
  absl::flat_hash_map<ir::Fingerprint, int64_t> known;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code == OpCode::kFree) continue;
    if (program::IsMove(instruction.code)) {
      for (size_t k = 0; k < instruction.results.size(); ++k) {
        number[instruction.results[k]] = number[instruction.operands[k]];
      }
      continue;
    }
    const rules::Rule* const rule = rules::Find(instruction.op);
    ir::Fingerprinter f;
    f.Add(absl::string_view(instruction.op)).Add(Global(instruction.attributes));
    for (ValueId v : instruction.operands) {
      f.Add(v == program::kNoValue ? int64_t{-1} : number[v]);
    }
    for (ValueId v : instruction.results) f.Add(program.values[v].type);
    const int64_t first = next;
    if (rule == nullptr || !rule->random) {
      const auto [entry, is_new] = known.try_emplace(f.Finish(), next);
      recomputed[i] = !is_new;
      if (!is_new) {
        for (size_t r = 0; r < instruction.results.size(); ++r) {
          number[instruction.results[r]] = entry->second + static_cast<int64_t>(r);
        }
        continue;
      }
    }
    next += static_cast<int64_t>(instruction.results.size());
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      number[instruction.results[r]] = first + static_cast<int64_t>(r);
    }
  }
  return recomputed;
}

}  // namespace spmd::timeline
