// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/fused_sums.h"

namespace spmd::runtime {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

namespace {

bool IsProduct(const Instruction& instruction) {
  return instruction.code == OpCode::kCall && instruction.op == "spmd::linear_dinput" &&
         instruction.operands.size() == 2;
}

bool IsSum(const Instruction& instruction) {
  if (instruction.code != OpCode::kCall || instruction.op != "aten::add.Tensor") return false;
  // A number that is given at run time is none here.
  const Attr* alpha = instruction.attributes.Find("alpha");
  return instruction.operands.size() == 2 && instruction.added_once.empty() &&
         (alpha == nullptr || *alpha == Attr(int64_t{1}) || *alpha == Attr(1.0));
}

}  // namespace

std::vector<int> FindProductsToAdd(const Program& program,
                                   absl::Span<const PlacementPtr> placements) {
  std::vector<int> uses(program.values.size(), 0), product(program.values.size(), -1);
  for (const program::Output& output : program.outputs) ++uses[output.value];
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code == OpCode::kFree) continue;
    for (ValueId id : instruction.operands) {
      if (id != program::kNoValue) ++uses[id];
    }
    if (IsProduct(instruction)) product[instruction.results[0]] = static_cast<int>(i);
  }
  std::vector<int> products(program.instructions.size(), -1);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& add = program.instructions[i];
    if (!IsSum(add)) continue;
    const ValueId sum = add.operands[0], added = add.operands[1], result = add.results[0];
    const program::Value& value = program.values[result];
    const DType dtype = value.type.dtype;
    if (product[added] < 0 || uses[added] != 1 || !value.sharding.IsUnreduced()) continue;
    if (dtype != DType::kF32 && dtype != DType::kF64) continue;
    if (program.values[sum].type != value.type || program.values[added].type != value.type ||
        placements[sum] != placements[result] || placements[added] != placements[result]) {
      continue;
    }
    products[i] = product[added];
  }
  return products;
}

Instruction AddProduct(const Instruction& add, const Instruction& product) {
  Instruction both = add;
  both.op = "spmd::add_linear_dinput";
  both.operands = {add.operands[0], product.operands[0], product.operands[1]};
  both.attributes = {};
  return both;
}

}  // namespace spmd::runtime
