// SPDX-License-Identifier: Apache-2.0
// The part of a graph that some of its outputs depend on, and copies of nodes.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {

// Appends a node of `from` to `to`, over `operands`. Its values are not annotated.
NodeId CopyNode(const Graph& from, const Node& node, absl::Span<const ValueId> operands, Graph& to);

struct Part {
  Graph graph;
  std::vector<int> inputs;  // input k of the part is input inputs[k] of the whole
};

// Output k of the part is output outputs[k] of the whole. Grids, scalars and sources are all kept,
// nodes, inputs and annotations that are needed. An output that replaces an input needs it.
Part PartFor(const Graph& whole, absl::Span<const int> outputs);

// By value: the marked inputs and nodes that it depends on, ascending: input k is k, node n is
// the number of inputs + n.
std::vector<std::vector<int>> Dependences(const Graph& graph,
                                          const std::vector<bool>& marked_inputs,
                                          const std::vector<bool>& marked_nodes);

}  // namespace spmd::ir
