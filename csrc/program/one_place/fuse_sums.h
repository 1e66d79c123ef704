// SPDX-License-Identifier: Apache-2.0
// Fuses products into the additions that add them to a partial sum: they are added while they are
// computed, so that the product is not written and read again on each device. This is done for
// partial sums only: values that are not unreduced keep the bits of PyTorch's two ops.
//
//   %2: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
//   %3: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call aten::add.Tensor(%1, %2, alpha=1)
//   %4: f32[8,256,384] @m {},{},{} = all_reduce(%3) {model}
//
// becomes
//
//   %3: f32[8,256,384] @m {},{},{} unreduced(sum){model} = call spmd::add_linear_dinput(%1, %g, %w)
//   %4: f32[8,256,384] @m {},{},{} = all_reduce(%3) {model}
//
// and %3 overwrites %1 if that is dead. If %1 is a product too, %4 is a sum of two products of each
// device (csrc/runtime/one_place/sum_of_products.h).
#pragma once

#include <optional>
#include <vector>

#include "csrc/program/def_use.h"
#include "csrc/program/program.h"

namespace spmd::program {

// nullopt if nothing is fused. A product stays by itself where a device's term of it is known to be
// zero, because the device has nothing to contract.
std::optional<Program> FuseSums(const Program& program);

// The calls that compute the unreduced value `id` as a sum of products, in program order: one
// product, then calls of which each adds one more to the result of the one before. None if the
// value is computed in another way or of more than a few products, or if it or a value in between
// does not have exactly one use. Requires: `facts` are the program's.
std::vector<int> ProductsOf(const Program& program, const DefUse& facts, ValueId id);

// The call that computes what `call`, one of ProductsOf, adds: the product alone.
Instruction ProductIn(const Instruction& call);

}  // namespace spmd::program
