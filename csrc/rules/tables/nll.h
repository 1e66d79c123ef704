// SPDX-License-Identifier: Apache-2.0
// Negative log likelihood. Where the classes are sharded, a shard handles the targets in its
// interval and gives zero for the others; the sums over shards are the results.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::nll_loss_forward(self, target, weight?) -> output, total_weight; self [n, c] or [c].
absl::StatusOr<std::vector<ir::ValueId>> NllForward(Builder& b, const ir::Graph& from,
                                                    const ir::Node& node,
                                                    absl::Span<const ir::ValueId> operands);
// aten::nll_loss_backward(grad, self, target, weight?, total_weight).
absl::StatusOr<std::vector<ir::ValueId>> NllBackward(Builder& b, const ir::Graph& from,
                                                     const ir::Node& node,
                                                     absl::Span<const ir::ValueId> operands);
// The same for self [n, c, h, w], target [n, h, w].
absl::StatusOr<std::vector<ir::ValueId>> Nll2dForward(Builder& b, const ir::Graph& from,
                                                      const ir::Node& node,
                                                      absl::Span<const ir::ValueId> operands);
absl::StatusOr<std::vector<ir::ValueId>> Nll2dBackward(Builder& b, const ir::Graph& from,
                                                       const ir::Node& node,
                                                       absl::Span<const ir::ValueId> operands);

// spmd::nll_sum, spmd::nll_rows.
absl::StatusOr<std::vector<TensorType>> NllSumTypes(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> NllRowsTypes(const OpCall& call);
Attributes LocalNll(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// spmd::nll_dinput(grad, target, weight?, scale); grad has the target's dims or is a scalar.
absl::StatusOr<OpFactors> NllDInputFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> NllDInputTypes(const OpCall& call);
Attributes LocalNllDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// spmd::cross_entropy_dinput(grad, logp, target, weight?, scale). Every class needs the weight of
// the row's target, so `weight` is always whole and indexed by the global class.
absl::StatusOr<OpFactors> CrossEntropyDInputFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> CrossEntropyDInputTypes(const OpCall& call);
Attributes LocalCrossEntropyDInput(const OpCall& call, const OpFactors& factors,
                                   const CutFactors& cut);

}  // namespace spmd::rules
