// SPDX-License-Identifier: Apache-2.0
// PyTorch's broadcasting and type promotion for element-wise ops.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

// The type to which two element types promote: f16 and bf16 to f32, i32 and f32 to f32, u8 and i8
// to i16.
DType Promote(DType a, DType b);

// The element type in which PyTorch computes an element-wise call. Operands of rank 0 count only if
// their category (bool < integer < floating < complex) is higher than that of all others; scalar
// attributes "other", "value", "exponent" … only if theirs is higher than that of all operands.
// Run-time scalars never promote, since a call does not show their kind.
DType PromotedDType(const OpCall& call);

// Errors: InvalidArgument when the sizes do not broadcast.
absl::StatusOr<Dims> BroadcastDims(const OpCall& call);

// The type of the one result: broadcast dims and promoted element type.
absl::StatusOr<std::vector<TensorType>> PromotedTypes(const OpCall& call);

// One factor per dimension, aligned at the right. An operand dimension of size 1 where the result
// is larger has no factor. All results have the same dims.
absl::StatusOr<OpFactors> BroadcastFactors(const OpCall& call);

}  // namespace spmd::rules
