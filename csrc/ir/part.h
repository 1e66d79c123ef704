// SPDX-License-Identifier: Apache-2.0
// The part of a graph that some of its outputs depend on, copies of single nodes, and empty graphs
// to which a graph is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {

// Appends a copy of `node` of graph `from` to `to`, with `operands`. Its results have no
// annotations.
NodeId CopyNode(const Graph& from, const Node& node, absl::Span<const ValueId> operands, Graph& to);

// A graph without inputs, nodes and outputs that has the scalars and sources of `like`, and its
// grids unless they are left out.
enum class Grids : uint8_t { kKept, kLeftOut };
Graph EmptyLike(const Graph& like, Grids grids = Grids::kKept);

struct Part {
  Graph graph;
  std::vector<int> inputs;  // input k of the part is input inputs[k] of the whole
};

// The part of `whole` that `outputs` need; output k of the part is output outputs[k] of the whole.
// All grids, scalars and sources are kept, and the nodes, inputs and annotations that are needed.
// An output that replaces an input needs that input.
Part PartFor(const Graph& whole, absl::Span<const int> outputs);

}  // namespace spmd::ir
