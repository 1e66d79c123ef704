// SPDX-License-Identifier: Apache-2.0
// Finds contractions that several devices repeat, and proposes how they could share them.
//
// If no annotation brings an axis to a contraction, nothing shards the contraction by that axis,
// and every device along it does the same work. The heads of attention are such a case in a layer
// whose weights are sharded by [out, in] = (data, model):
//
//   attention q[b,h,s,d] {data},{},{},{}   model is idle: four devices do the work of one
//   proposed                               {data},{model},{},{}
//
// Propagation then starts anew from the proposals; the plan that results is used if its price is
// lower (compile.cc).
#pragma once

#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

// The factor of a contraction that the idle axes shall shard.
enum class Share {
  kWhole,  // one that the plan does not shard: heads
  kBatch,  // one of the activations that the plan shards already: the batch, over more devices
};

// One proposal per result of each contraction that idle axes could share; none if all repeated work
// together is not worth another search. With Share::kBatch, contractions that use all axes are
// proposed as they are planned, so that what the user asked for stays.
std::vector<propagate::Proposal> ShareRepeatedWork(
    const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
    const std::vector<NodePlan>& plans, Share share);

// Whether in `after` every contraction is sharded by all axes that shard it in `before`, on the
// same factors. Otherwise a batch that takes an axis of the weights would cause these to be
// gathered: that may have a lower price in our weighting of moves, but it is not what sharding the
// weights asks for.
bool KeepsCuts(const std::vector<propagate::NodeFactors>& factors,
               const std::vector<NodePlan>& before, const std::vector<NodePlan>& after);

}  // namespace spmd::partition
