// SPDX-License-Identifier: Apache-2.0
// Products that are added to terms of a sum are added as they are computed: the product is not
// written and read again, for each device.
//
//   %2: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
//   %3: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call aten::add.Tensor(%1, %2, alpha=1)
//
// runs as spmd::add_linear_dinput(%1, %g, %w), over %1 where that is dead. Only where terms are
// added: values that are whole keep the bits of PyTorch's two ops.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/runtime/placement.h"

namespace spmd::runtime {

// By instruction: for an addition the index of the product that it may compute, else -1.
std::vector<int> FindProductsToAdd(const program::Program& program,
                                   absl::Span<const PlacementPtr> placements);

// The call that does both.
program::Instruction AddProduct(const program::Instruction& add,
                                const program::Instruction& product);

}  // namespace spmd::runtime
