// SPDX-License-Identifier: Apache-2.0
// Contractions that devices do several times over, and how they could share them.
//
// Where no annotation leads an axis to a contraction, nothing cuts it by that axis, and every
// device along it does the same work. In a layer whose weights are cut by [out, in] = (data, model)
// the heads of attention are such a case:
//
//   attention q[b,h,s,d] {data},{},{},{}   model is idle: four devices do the work of one
//   proposed                               {data},{model},{},{}
//
// From the proposals propagation starts anew; the plan that comes of it is taken where it costs
// less (compile.cc).
#pragma once

#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

// One proposal per result of each contraction that idle axes could share; none where all repeated
// work together is not worth another search.
std::vector<propagate::Proposal> ShareRepeatedWork(
    const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
    const std::vector<NodePlan>& plans);

}  // namespace spmd::partition
