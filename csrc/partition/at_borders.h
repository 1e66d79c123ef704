// SPDX-License-Identifier: Apache-2.0
// The shardings that a plan is not free to choose: those of values that leave the program, and
// those of results that the user annotated.
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/sharding/sharding.h"

namespace spmd::partition {

// The sharding in which a value must leave the program, unless it leaves unreduced. An output that
// becomes an input's new value has that input's sharding; for any other output nullopt: any reduced
// sharding will do.
std::optional<Sharding> RequiredAtOutput(const ir::Graph& graph, const ir::Output& output);
// Whether an output that is computed in the sharding `produced` may leave as partial sums, to which
// a later program goes on adding or which it reduces, if it uses them at all. It may if the output
// says so, and if a device then holds no more bytes than it would of the sum.
bool LeavesAsTerms(const ir::Graph& graph, const ir::Output& output, const Sharding& produced,
                   int grid);

// True if `value` is a node's result with a committed annotation: users get the value in that
// sharding.
bool IsConstraint(const ir::Graph& graph, ir::ValueId value);
// True if a constrained value that is computed in the sharding `made` needs no move, because `made`
// uses the axes that the user asked for. The boundaries between shards are free as long as the
// value does not leave the program and the largest shard is hardly larger.
bool MeetsConstraint(const ir::Graph& graph, ir::ValueId value, const Sharding& made, int grid);

}  // namespace spmd::partition
