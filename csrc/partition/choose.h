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

// The sharding in which a value must leave the program, unless it leaves as terms: the buffer's own
// where it becomes one; any reduced one (nullopt: as produced, reduced) elsewhere.
std::optional<Sharding> RequiredAtOutput(const ir::Graph& graph, const ir::Output& output);
// Whether an output that was produced so leaves as the terms of a sum, for a later program to go on
// adding to: where it may, and a device holds no more than it would of the sum.
bool LeavesAsTerms(const ir::Graph& graph, const ir::Output& output, const Sharding& produced,
                   int grid);

// True where the annotation of a node's result binds: users get the value in that sharding.
bool IsConstraint(const ir::Graph& graph, ir::ValueId value);
// True where a constrained value that is made in `made` needs no move: the axes are where the user
// asked for them. Where the boundaries between shards lie is ours to choose, as long as the value
// does not leave the program and the shards are about as even.
bool MeetsConstraint(const ir::Graph& graph, ir::ValueId value, const Sharding& made, int grid);

}  // namespace spmd::partition
