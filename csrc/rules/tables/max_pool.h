// SPDX-License-Identifier: Apache-2.0
// Maxima over windows. Their indices are positions in the whole plane, but aten's op counts from
// the tile that it gets. Spatial dimensions are therefore whole; to shard them, the op becomes
// spmd::max_pool, which is told where its tile lies. All dimensions before the last `rank` are
// batch and channels, which pass.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// max_pool_with_indices(self) -> out, indices, and its gradient (grad, self, indices).
absl::StatusOr<OpFactors> MaxPoolWithIndicesFactors(const OpCall& call, int rank);
absl::StatusOr<std::vector<ir::ValueId>> MaxPoolByOffset(Builder& b, const OpCall& call,
                                                         Operands operands, int rank);
absl::StatusOr<std::vector<ir::ValueId>> MaxPoolBackwardByOffset(Builder& b, const OpCall& call,
                                                                 Operands operands, int rank);

// spmd::max_pool(Tensor input, int[] output_size, int[] kernel_size, int[] stride, int[] padding,
//                int[] dilation, int[] offset, int[] plane) -> (Tensor out, Tensor indices)
// All lists have an entry per spatial dimension. `input` begins at `offset` of a plane of the sizes
// `plane`. Elements of a window outside `input` count as smaller than all others. Indices are
// row-major in the plane.
absl::StatusOr<OpFactors> MaxPoolFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> MaxPoolTypes(const OpCall& call);
Attributes LocalMaxPool(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// spmd::max_pool_dinput(Tensor grad, Tensor indices, int[] input_size, int[] kernel_size,
//                       int[] stride, int[] padding, int[] dilation, int[] offset, int[] plane)
//     -> Tensor
// The result has the spatial sizes `input_size` and begins at `offset` of the plane. Each gradient
// is added at its index if the result contains it. The windows tell which gradients can matter.
absl::StatusOr<OpFactors> MaxPoolDInputFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> MaxPoolDInputTypes(const OpCall& call);
Attributes LocalMaxPoolDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

}  // namespace spmd::rules
