// SPDX-License-Identifier: Apache-2.0
// Shardings that a plan is not free to choose: where values leave the program, and where the user
// annotated a result.
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/sharding/sharding.h"

namespace spmd::partition {

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
