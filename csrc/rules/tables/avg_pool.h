// SPDX-License-Identifier: Apache-2.0
// Means over windows. All dimensions before the last `rank` are batch and channels, which pass.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// avg_pool(self). A spatial dimension is read through windows if all means have one divisor. A
// dimension with padding that does not count, or whose last window reaches outside, has several;
// its means are taken one dimension after the other by spmd::resample.
absl::StatusOr<OpFactors> AvgPoolFactors(const OpCall& call, int rank);
Attributes LocalAvgPool(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                        int rank);
absl::StatusOr<std::vector<ir::ValueId>> AvgPoolByDimension(Builder& b, const OpCall& call,
                                                            Operands operands, int rank);

// avg_pool_backward(grad, self). Where windows neither overlap nor leave gaps, a dimension of self
// is (window index). Other spatial dimensions are whole; to shard one, the op becomes the input
// gradient of a convolution with a constant kernel, or is computed dimension by dimension.
absl::StatusOr<OpFactors> AvgPoolBackwardFactors(const OpCall& call, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AvgPoolBackwardInCoreOps(Builder& b, const OpCall& call,
                                                                  Operands operands, int rank);

// adaptive_avg_pool(self) and its gradient (grad, self). A dimension of self is (window index)
// where its size is a multiple of the result's. To shard another dimension, spmd::resample computes
// its means.
absl::StatusOr<OpFactors> AdaptiveAvgPoolFactors(const OpCall& call, int rank);
absl::StatusOr<OpFactors> AdaptiveAvgPoolBackwardFactors(const OpCall& call, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AdaptiveAvgPoolByDimension(Builder& b, const OpCall& call,
                                                                    Operands operands, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AdaptiveAvgPoolBackwardByDimension(Builder& b,
                                                                            const OpCall& call,
                                                                            Operands operands,
                                                                            int rank);

}  // namespace spmd::rules
