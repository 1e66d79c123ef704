// SPDX-License-Identifier: Apache-2.0
// Factors whose indices may stand in any order.
#pragma once

#include "csrc/propagate/graph_factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::partition {

// True where the op works on each index of the factor by itself, or sums over all of them: it may
// be cut anywhere, in every tensor it is all of a dimension, it is read through no window, and no
// attribute says where along it a tile begins.
bool IsInAnyOrder(const propagate::NodeFactors& factors, const rules::OpCall& call, int factor);

}  // namespace spmd::partition
