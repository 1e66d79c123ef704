// SPDX-License-Identifier: Apache-2.0
// Copies a graph with some nodes replaced. All passes from graph to graph are written with it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// Gives what replaces one node of the old graph: the new graph's values for its results, or nullopt
// to copy the node. `operands` are the node's operands in the new graph.
using ReplaceFn = std::function<absl::StatusOr<std::optional<std::vector<ir::ValueId>>>(
    rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
    absl::Span<const ir::ValueId> operands)>;

// Copies `graph`. Grids, scalars, sources, inputs and outputs keep their order, and values keep
// their annotations. Nodes for which `keep` is false are dropped. Requires: no node or output that
// is kept uses a dropped one.
absl::StatusOr<ir::Graph> Rewrite(const ir::Graph& graph, const ReplaceFn& replace,
                                  const std::vector<bool>& keep = {});

// By node: whether something that leaves the graph depends on it.
std::vector<bool> LiveNodes(const ir::Graph& graph);

}  // namespace spmd::partition
