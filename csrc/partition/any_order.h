// SPDX-License-Identifier: Apache-2.0
// Finds factors whose indices may be in any order.
#pragma once

#include "csrc/propagate/graph_factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::partition {

// True if the op works on each index of the factor alone, or sums over all of them. That is:
// the factor may be sharded at any index, it is a whole dimension of every tensor that has it, no
// window reads it, and no attribute says where along it a tile begins.
bool IsInAnyOrder(const propagate::NodeFactors& factors, const rules::OpCall& call, int factor);

}  // namespace spmd::partition
