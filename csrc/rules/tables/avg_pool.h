// SPDX-License-Identifier: Apache-2.0
// Means over windows. All dimensions before the last `rank` are batch and channels, and pass.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// avg_pool(self): spatial dimensions come as windows where the divisor of each mean is the same;
// not along a dimension with padding that does not count, or with a last window that reaches
// outside. Such means are taken one dimension after the other, by spmd::resample.
absl::StatusOr<OpFactors> AvgPoolFactors(const OpCall& call, int rank);
Attributes LocalAvgPool(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                        int rank);
absl::StatusOr<std::vector<ir::ValueId>> AvgPoolByDimension(Builder& b, const OpCall& call,
                                                            absl::Span<const ir::ValueId> operands,
                                                            int rank);

// avg_pool_backward(grad, self): where windows neither overlap nor leave gaps self is (window
// index); else spatial dimensions are whole, and when cut it is the input gradient of a convolution
// with a constant kernel, or goes dimension by dimension, too.
absl::StatusOr<OpFactors> AvgPoolBackwardFactors(const OpCall& call, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AvgPoolBackwardInCoreOps(
    Builder& b, const OpCall& call, absl::Span<const ir::ValueId> operands, int rank);

// adaptive_avg_pool(self) and its gradient (grad, self): self is (window index) along a dimension
// whose sizes divide. Others, when cut, are averaged by spmd::resample.
absl::StatusOr<OpFactors> AdaptiveAvgPoolFactors(const OpCall& call, int rank);
absl::StatusOr<OpFactors> AdaptiveAvgPoolBackwardFactors(const OpCall& call, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AdaptiveAvgPoolByDimension(
    Builder& b, const OpCall& call, absl::Span<const ir::ValueId> operands, int rank);
absl::StatusOr<std::vector<ir::ValueId>> AdaptiveAvgPoolBackwardByDimension(
    Builder& b, const OpCall& call, absl::Span<const ir::ValueId> operands, int rank);

}  // namespace spmd::rules
