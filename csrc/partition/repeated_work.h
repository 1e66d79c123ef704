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

// Which factor of a contraction the idle axes are to cut.
enum class Share {
  kWhole,  // one that the plan leaves whole: heads
  kBatch,  // one of the activations' that the plan cuts already: the batch, over more devices
};

// One proposal per result of each contraction that idle axes could share; none where all repeated
// work together is not worth another search. Where the batch is to be cut further, a contraction
// that idle axes of others cut is proposed as it is: what the user asked for stays.
std::vector<propagate::Proposal> ShareRepeatedWork(
    const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
    const std::vector<NodePlan>& plans, Share share);

// Whether every contraction is cut in `after` by all axes that cut it in `before`, and where they
// did. A batch that is cut over an axis of the weights would have them gathered: cheaper by our
// weights of moves, and not what cutting them asks for.
bool KeepsCuts(const std::vector<propagate::NodeFactors>& factors,
               const std::vector<NodePlan>& before, const std::vector<NodePlan>& after);

}  // namespace spmd::partition
