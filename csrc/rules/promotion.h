// SPDX-License-Identifier: Apache-2.0
// PyTorch's broadcasting and type promotion, for element-wise ops.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

// The type two element types promote to: f16 and bf16 to f32, i32 and f32 to f32, u8 and i8 to i16.
DType Promote(DType a, DType b);

// The element type PyTorch computes an element-wise call in: operands of rank 0 count only when
// they are of a higher category (bool < integer < floating < complex) than all others, scalar
// attributes "other", "value", "exponent", "alpha" … only when higher than all operands. Run-time
// scalars never promote: their kind is not visible in a call.
DType PromotedDType(const OpCall& call);

// Errors: InvalidArgument when the sizes do not broadcast.
absl::StatusOr<Dims> BroadcastDims(const OpCall& call);

// One result of the broadcast dims, of the promoted type.
absl::StatusOr<std::vector<TensorType>> PromotedTypes(const OpCall& call);

// Dims aligned at the right, one factor each; an operand dimension of size 1 where the result is
// larger has none. All results have the same dims.
absl::StatusOr<OpFactors> BroadcastFactors(const OpCall& call);

}  // namespace spmd::rules
