// SPDX-License-Identifier: Apache-2.0
// Chooses for each node the factors that the axes shard.
//
// Minimizes, by local search, the time of all ops plus the time of all moves that bring values from
// the layouts in which they are produced into the layouts in which they are used. Only committed
// annotations bind. Axes that always occur together are one *group*. At a node, a group may do one
// of these: shard a factor that carries it in some operand, result or wish; shard a factor of the
// same tensor as one that the group shards and the op needs whole; shard nothing; or, where the
// node is linear, pass the partial sums of an unreduced operand on. All combinations are priced up
// to a bound. The search goes over the nodes forward and backward until nothing changes, at most
// kSweeps times. Of candidates with equal prices the earlier one is kept, so the result depends on
// the graph alone.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/earlier_plans.h"
#include "csrc/partition/plan_memo.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// One plan per node, and the price of all of them together.
struct Chosen {
  std::vector<NodePlan> plans;
  double seconds = 0;
};
// `memo` may be kept from search to search. Requires: every value of `graph` is annotated
// (Propagate has run).
Chosen Choose(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
              PlanMemo& memo);
// What a later graph with the same ops takes over.
std::vector<SearchedPlan::Node> ForLater(const std::vector<NodePlan>& plans, const ir::Graph& graph,
                                         const std::vector<propagate::NodeFactors>& factors);
// The plans of an earlier search, without a search. nullopt if one of them is not legal for the
// sizes of `graph`, or if shards of an op with other sizes would differ in size. Requires also:
// `earlier` is of a graph with the same ops.
std::optional<std::vector<NodePlan>> ChooseAs(const std::vector<SearchedPlan::Node>& earlier,
                                              const ir::Graph& graph,
                                              const std::vector<propagate::NodeFactors>& factors,
                                              PlanMemo& memo);

}  // namespace spmd::partition
