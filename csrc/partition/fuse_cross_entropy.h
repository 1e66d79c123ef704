// SPDX-License-Identifier: Apache-2.0
// The gradient of cross entropy in one step. Taken apart, the gradient of log_softmax sums the
// gradient of nll over the classes; that sum is known without looking at them, which saves a
// reduction where the classes are cut and a tensor of tokens × classes everywhere.
//
//   _log_softmax_backward_data(nll_dinput(g, t, w, s), logp, dim=-1)  ->  cross_entropy_dinput(...)
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// The operands of a _log_softmax_backward_data and its "dim"; nullopt where `grad` is something
// else.
std::optional<ir::ValueId> FuseCrossEntropy(rules::Builder& builder, ir::ValueId grad,
                                            ir::ValueId logp, const Attributes& attributes);

}  // namespace spmd::partition
