// SPDX-License-Identifier: Apache-2.0
// Copies of a graph with some nodes replaced. All graph → graph passes are written with it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// What becomes of one node of the old graph: the new graph's values for its results, or nullopt to
// copy the node. `operands` are the node's operands in the new graph.
using ReplaceFn = std::function<absl::StatusOr<std::optional<std::vector<ir::ValueId>>>(
    rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
    absl::Span<const ir::ValueId> operands)>;

// Grids, scalars, sources, inputs and outputs are kept in order; annotations go with the values.
// Nodes for which `keep` is false are dropped. Requires: nothing kept uses them.
absl::StatusOr<ir::Graph> Rewrite(const ir::Graph& graph, const ReplaceFn& replace,
                                  const std::vector<bool>& keep = {});

// Which nodes something that leaves the graph depends on.
std::vector<bool> LiveNodes(const ir::Graph& graph);

}  // namespace spmd::partition
