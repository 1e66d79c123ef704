// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/fuse_sums.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "csrc/program/analysis.h"
#include "csrc/rules/registry.h"

namespace spmd::program {
namespace {

// The facts about the op that the instruction calls; the defaults if it calls none.
const rules::OpFacts& FactsOf(const Instruction& instruction) {
  return rules::FactsOf(instruction.code == OpCode::kCall ? instruction.op : "");
}

std::string ToString(absl::string_view name) { return std::string(name.data(), name.size()); }

bool IsSum(const Instruction& instruction) {
  if (!FactsOf(instruction).adds) return false;
  // A run-time scalar does not count as a known number here.
  const Attr* alpha = instruction.attributes.Find("alpha");
  return instruction.operands.size() == 2 && instruction.added_once.empty() &&
         (alpha == nullptr || *alpha == Attr(int64_t{1}) || *alpha == Attr(1.0));
}

// Partial sums of half types are held in f32, but products of half types cannot add into f32.
bool IsSumOfTerms(const Value& value) {
  const DType dtype = value.type.dtype;
  return value.sharding.IsUnreduced() && value.sharding.reduce_kind == ReduceKind::kSum &&
         (dtype == DType::kF32 || dtype == DType::kF64);
}

bool HaveEqualTiles(const Value& a, const Value& b) {
  return a.type == b.type && a.grid == b.grid && a.sharding == b.sharding && a.windows == b.windows;
}

// True if some device has no index to contract over, so that its term is zero.
bool HasEmptyTerms(const Program& program, const Instruction& product) {
  const AxisMask summed = program.values[product.results[0]].sharding.UnreducedAxes();
  for (ValueId id : product.operands) {
    if (id == kNoValue) continue;
    const Layout layout = program.LayoutOf(id);
    for (int d = 0; d < layout.rank(); ++d) {
      if ((MaskOf(layout.sharding().dims[d].axes) & summed) == 0) continue;
      if (layout.ShardInterval(d, layout.num_shards(d) - 1).empty()) return true;
    }
  }
  return false;
}

// The product that `add` adds to a partial sum and may compute itself; -1 if there is none.
int ProductAddedBy(const Program& program, const DefUse& facts, const Instruction& add) {
  if (!IsSum(add)) return -1;
  const ValueId added = add.operands[1];
  const Value& sum = program.values[add.results[0]];
  if (!IsSumOfTerms(sum) || facts.uses(added) != 1 || facts.maker(added) < 0) return -1;
  const Instruction& product = program.instructions[facts.maker(added)];
  const bool fits = !FactsOf(product).added_by.empty() && product.added_once.empty() &&
                    HaveEqualTiles(program.values[add.operands[0]], sum) &&
                    HaveEqualTiles(program.values[added], sum) && !HasEmptyTerms(program, product);
  return fits ? facts.maker(added) : -1;
}

}  // namespace

std::optional<Program> FuseSums(const Program& program) {
  const DefUse facts(program);
  std::vector<int> products;
  for (const Instruction& add : program.instructions) {
    products.push_back(ProductAddedBy(program, facts, add));
  }
  if (std::all_of(products.begin(), products.end(), [](int p) { return p < 0; })) {
    return std::nullopt;
  }
  Program fused = program;
  std::vector<bool> gone(products.size(), false);
  for (size_t i = 0; i < products.size(); ++i) {
    if (products[i] < 0) continue;
    const Instruction& product = program.instructions[products[i]];
    Instruction& both = fused.instructions[i];
    both.op = ToString(FactsOf(product).added_by);
    both.operands = {both.operands[0]};
    both.operands.insert(both.operands.end(), product.operands.begin(), product.operands.end());
    both.attributes = {};
    both.updates = -1;
    gone[products[i]] = true;
  }
  std::vector<Instruction> kept;
  for (size_t i = 0; i < gone.size(); ++i) {
    if (!gone[i]) kept.push_back(std::move(fused.instructions[i]));
  }
  fused.instructions = std::move(kept);
  InsertFrees(fused);
  return fused;
}

std::vector<int> ProductsOf(const Program& program, const DefUse& facts, ValueId id) {
  // The operands of all these products stay in memory until the last of them is computed, so only a
  // few are summed: as many as an attention layer has projections.
  constexpr size_t kMost = 4;
  std::vector<int> found;
  while (found.size() < kMost && facts.uses(id) == 1 && facts.maker(id) >= 0 &&
         IsSumOfTerms(program.values[id])) {
    const Instruction& maker = program.instructions[facts.maker(id)];
    found.push_back(facts.maker(id));
    if (FactsOf(maker).product.has_value()) {
      std::reverse(found.begin(), found.end());
      return found;
    }
    if (FactsOf(maker).adds_result_of.empty()) break;
    id = maker.operands[0];
  }
  return {};
}

Instruction ProductIn(const Instruction& call) {
  Instruction product = call;
  const absl::string_view op = FactsOf(call).adds_result_of;
  if (op.empty()) return product;
  product.op = ToString(op);
  product.operands.erase(product.operands.begin());
  return product;
}

}  // namespace spmd::program
