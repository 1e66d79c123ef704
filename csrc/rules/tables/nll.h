// SPDX-License-Identifier: Apache-2.0
// Negative log likelihood. Where the classes are sharded, a shard handles the targets in its
// interval and gives zero for the others; the sums over shards are the results.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::nll_loss_forward(self, target, weight?) -> output, total_weight; self [n, c] or [c].
absl::StatusOr<std::vector<ir::ValueId>> NllForward(Builder& b, const ir::Graph& from,
                                                    const ir::Node& node, Operands operands);
// aten::nll_loss_backward(grad, self, target, weight?, total_weight).
absl::StatusOr<std::vector<ir::ValueId>> NllBackward(Builder& b, const ir::Graph& from,
                                                     const ir::Node& node, Operands operands);
// The same for self [n, c, h, w], target [n, h, w].
absl::StatusOr<std::vector<ir::ValueId>> Nll2dForward(Builder& b, const ir::Graph& from,
                                                      const ir::Node& node, Operands operands);
absl::StatusOr<std::vector<ir::ValueId>> Nll2dBackward(Builder& b, const ir::Graph& from,
                                                       const ir::Node& node, Operands operands);

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

// _log_softmax_backward_data(nll_dinput(g, t, w, s), logp, dim=-1) as cross_entropy_dinput(...):
// the gradient of cross entropy in one step. In two steps, the gradient of log_softmax sums the
// gradient of nll over the classes. That sum is known without looking at the classes, which saves a
// reduction where the classes are sharded, and a tensor of tokens × classes in every case. The
// gradient of nll may come through casts; it is not rounded then. nullopt if operand 0 is not the
// result of an nll_dinput, or the softmax is not over the last dimension.
std::optional<ir::ValueId> AsCrossEntropyDInput(Builder& b, Operands operands,
                                                const Attributes& attributes);

}  // namespace spmd::rules
