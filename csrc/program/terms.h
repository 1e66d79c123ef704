// SPDX-License-Identifier: Apache-2.0
// The element types in which partial results are held.
//
// A half-precision sum is the sum of its partial sums in f32, rounded once. The partial sums are
// therefore computed and held in f32, although the value has a half type.
//
//   %1: f16[] unreduced(sum){data} = call aten::sum(%0)    runs in f32; the tiles are f32
//   %2: f16[] = all_reduce(%1) {data}                      adds up in f32 and rounds to f16
//
// Traffic is counted in the value's own type.
#pragma once

#include "csrc/ir/type.h"
#include "csrc/sharding/sharding.h"

namespace spmd::program {

// f32 for f16 and bf16, c64 for c32; any other type is returned as it is.
DType Widened(DType dtype);

// The element type of a value's tiles: `dtype`, widened where the tiles are partial sums or
// products.
DType HeldType(DType dtype, const Sharding& sharding);

}  // namespace spmd::program
