// SPDX-License-Identifier: Apache-2.0
// Products that are added to something as they are computed: the product is not written and read
// again, for each device. Only where terms are added: values that are whole keep the bits of
// PyTorch's two ops.
//
//   %2: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
//   %3: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call aten::add.Tensor(%1, %2, alpha=1)
//   %4: f32[8,256,384] @m {},{},{} = all_reduce(%3) {model}
//
// %3 runs as spmd::add_linear_dinput(%1, %g, %w), over %1 where that is dead. Where %1 is a
// product, too, %4 is the sum of two products of each device (csrc/runtime/sum_of_products.h).
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/runtime/placement.h"

namespace spmd::runtime {

// Which products may be computed where they are added. Keeps references to what it is made of.
class FusedSums {
 public:
  FusedSums(const program::Program& program, absl::Span<const PlacementPtr> placements);

  // For an addition of a product to terms the index of the product, else -1.
  int ProductAddedBy(int instruction) const { return added_by_[instruction]; }
  // The products whose sum an unreduced value is, in the order of the program, and the additions
  // that make it; none where it is the sum of something else, too, or of more than a few, or more
  // than one instruction uses it.
  struct Products {
    std::vector<int> products, additions;  // instructions
  };
  Products ProductsOf(program::ValueId id) const;

 private:
  bool MayAdd(const program::Instruction& add) const;

  const program::Program& program_;
  absl::Span<const PlacementPtr> placements_;
  std::vector<int> uses_, maker_;  // by value
  std::vector<int> added_by_;      // by instruction
};

// The call that computes a product and adds it.
program::Instruction AddProduct(const program::Instruction& add,
                                const program::Instruction& product);

}  // namespace spmd::runtime
