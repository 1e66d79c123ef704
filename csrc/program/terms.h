// SPDX-License-Identifier: Apache-2.0
// The element types in which terms are held.
//
// A sum of half precision is the sum of its terms in f32, rounded once: the terms are computed and
// held in f32, although the value is of a half type.
//
//   %1: f16[] unreduced(sum){data} = call aten::sum(%0)    tiles are f32, and so is what the op
//   runs in %2: f16[] = all_reduce(%1) {data}                      added up in f32, rounded to f16
//
// What crosses from one place to another is of the value's type, as bandwidths are reckoned.
#pragma once

#include "csrc/ir/type.h"
#include "csrc/sharding/sharding.h"

namespace spmd::program {

// f32 for f16 and bf16, c64 for c32; other types are their own.
DType Widened(DType dtype);

// The type of the tiles of a value: `dtype` widened where the tiles are terms of a sum or a
// product.
DType HeldType(DType dtype, const Sharding& sharding);

}  // namespace spmd::program
