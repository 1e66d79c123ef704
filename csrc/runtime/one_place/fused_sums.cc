// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/fused_sums.h"

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "csrc/rules/registry.h"

namespace spmd::runtime {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

namespace {

// The facts about the op that the instruction calls; the defaults if it calls none.
const rules::OpFacts& FactsOf(const Instruction& instruction) {
  return rules::FactsOf(instruction.code == OpCode::kCall ? instruction.op : "");
}

bool IsSum(const Instruction& instruction) {
  if (!FactsOf(instruction).adds) return false;
  // A run-time scalar does not count as a known number here.
  const Attr* alpha = instruction.attributes.Find("alpha");
  return instruction.operands.size() == 2 && instruction.added_once.empty() &&
         (alpha == nullptr || *alpha == Attr(int64_t{1}) || *alpha == Attr(1.0));
}

// Partial sums of half types are held in f32, but products of half types cannot add into f32.
bool IsSumOfTerms(const program::Value& value) {
  const DType dtype = value.type.dtype;
  return value.sharding.IsUnreduced() && value.sharding.reduce_kind == ReduceKind::kSum &&
         (dtype == DType::kF32 || dtype == DType::kF64);
}

}  // namespace

FusedSums::FusedSums(const Program& program, absl::Span<const PlacementPtr> placements)
    : program_(program),
      placements_(placements),
      facts_(program),
      added_by_(program.instructions.size(), -1) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& add = program.instructions[i];
    if (IsSum(add) && MayAdd(add)) added_by_[i] = facts_.maker(add.operands[1)];
  }
}

bool FusedSums::MayAdd(const Instruction& add) const {
  const ValueId sum = add.operands[0], added = add.operands[1], result = add.results[0];
  const program::Value& value = program_.values[result];
  return IsSumOfTerms(value) && facts_.uses(added) == 1 && facts_.maker(added) >= 0 &&
         !FactsOf(program_.instructions[facts_.maker(added)]).added_by.empty() &&
         program_.values[sum].type == value.type && program_.values[added].type == value.type &&
         placements_[sum] == placements_[result] && placements_[added] == placements_[result];
}

FusedSums::Products FusedSums::ProductsOf(ValueId id) const {
  // The operands of all these products stay in memory until the last of them is computed, so only a
  // few are fused: as many as an attention layer has projections.
  constexpr size_t kMost = 4;
  Products found;
  while (found.products.size() < kMost && facts_.uses(id) == 1 && facts_.maker(id) >= 0 &&
         IsSumOfTerms(program_.values[id])) {
    const Instruction& maker = program_.instructions[facts_.maker(id)];
    if (FactsOf(maker).product.has_value()) {
      found.products.push_back(facts_.maker(id));
      std::reverse(found.products.begin(), found.products.end());
      return found;
    }
    const int added = added_by_[facts_.maker(id)];
    if (added < 0) break;
    found.products.push_back(added);
    found.additions.push_back(facts_.maker(id));
    id = maker.operands[0];
  }
  return {};
}

Instruction AddProduct(const Instruction& add, const Instruction& product) {
  Instruction both = add;
  const absl::string_view added_by = FactsOf(product).added_by;
  both.op = std::string(added_by.data(), added_by.size());
  both.operands = {add.operands[0], product.operands[0], product.operands[1]};
  both.attributes = {};
  return both;
}

}  // namespace spmd::runtime
