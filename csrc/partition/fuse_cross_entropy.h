// SPDX-License-Identifier: Apache-2.0
// The gradient of cross entropy in one step. In two steps, the gradient of log_softmax sums the
// gradient of nll over the classes. That sum is known without looking at the classes, which saves a
// reduction where the classes are sharded, and a tensor of tokens × classes in every case.
//
//   _log_softmax_backward_data(nll_dinput(g, t, w, s), logp, dim=-1)  ->  cross_entropy_dinput(...)
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// Fuses a _log_softmax_backward_data of `grad` and `logp`, with its `attributes`. nullopt if `grad`
// is not the result of an nll_dinput, or the softmax is not over the last dimension.
std::optional<ir::ValueId> FuseCrossEntropy(rules::Builder& builder, ir::ValueId grad,
                                            ir::ValueId logp, const Attributes& attributes);

}  // namespace spmd::partition
