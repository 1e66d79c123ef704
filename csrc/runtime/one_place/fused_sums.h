// SPDX-License-Identifier: Apache-2.0
// Finds products that can be added to a partial sum while they are computed, so that the product is
// not written and read again on each device. This is done for partial sums only: values that are
// not unreduced keep the bits of PyTorch's two ops.
//
//   %2: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
//   %3: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call aten::add.Tensor(%1, %2, alpha=1)
//   %4: f32[8,256,384] @m {},{},{} = all_reduce(%3) {model}
//
// %3 runs as spmd::add_linear_dinput(%1, %g, %w), and overwrites %1 if that is dead. If %1 is a
// product too, %4 is a sum of two products of each device
// (csrc/runtime/one_place/sum_of_products.h).
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/program/def_use.h"
#include "csrc/program/program.h"
#include "csrc/runtime/placement.h"

namespace spmd::runtime {

// Keeps references to the arguments of its constructor.
class FusedSums {
 public:
  FusedSums(const program::Program& program, absl::Span<const PlacementPtr> placements);

  // If `instruction` adds a product to a partial sum and may compute it, the index of the product;
  // else -1.
  int ProductAddedBy(int instruction) const { return added_by_[instruction]; }
  // The products whose sum is the unreduced value `id`, and the additions that sum them, in program
  // order. None if anything else is added too, if there are more than a few products, or if `id` or
  // a value in between does not have exactly one use.
  struct Products {
    std::vector<int> products, additions;  // instructions
  };
  Products ProductsOf(program::ValueId id) const;

 private:
  bool MayAdd(const program::Instruction& add) const;

  const program::Program& program_;
  absl::Span<const PlacementPtr> placements_;
  const program::DefUse facts_;
  std::vector<int> added_by_;  // by instruction
};

// The call that computes `product` and adds it as `add` does.
program::Instruction AddProduct(const program::Instruction& add,
                                const program::Instruction& product);

}  // namespace spmd::runtime
