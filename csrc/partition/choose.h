// SPDX-License-Identifier: Apache-2.0
// Which factors of each node the axes cut.
//
// Minimises, by local search, the time of all ops plus the time of all moves that bring values from
// the layouts in which they are produced into the layouts in which they are used. Only committed
// annotations bind. Axes that always travel together are one (a group). Per group a node may cut
// any factor that carries it in some operand, result or wish; a factor beside one that the op needs
// whole and the group cuts; leave it out; or, where it is linear, pass the terms of an unreduced
// operand on. All combinations are priced up to a bound. Sweeps go
// forward and backward until nothing changes, at most kSweeps times. Ties keep the earlier
// candidate, so the result does not depend on anything but the graph.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/plan_memo.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// One plan per node, and what all of it costs.
struct Chosen {
  std::vector<NodePlan> plans;
  double seconds = 0;
};
// `memo`: kept from search to search. Requires: every value of `graph` is annotated (Propagate
// ran).
Chosen Choose(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
              PlanMemo& memo);

}  // namespace spmd::partition
