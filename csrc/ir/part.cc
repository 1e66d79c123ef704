// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/part.h"

#include <utility>

namespace spmd::ir {

NodeId CopyNode(const Graph& from, const Node& node, absl::Span<const ValueId> operands,
                Graph& to) {
  Graph::NodeSpec spec;
  spec.op = node.op;
  spec.operands.assign(operands.begin(), operands.end());
  spec.groups = node.groups;
  spec.attributes = node.attributes;
  spec.updates = node.updates;
  spec.task = node.task;
  spec.source = node.source;
  std::vector<TensorType> types;
  for (int r = 0; r < node.num_results; ++r) types.push_back(from.type(node.first_result + r));
  return to.AddNode(std::move(spec), types);
}

Graph EmptyLike(const Graph& like, Grids grids) {
  Graph graph;
  if (grids == Grids::kKept) {
    for (size_t g = 0; g < like.grids().size(); ++g) {
      graph.AddGrid(like.grids()[g], like.grid_name(static_cast<int>(g)));
    }
  }
  for (const ScalarKind kind : like.scalars()) graph.AddScalar(kind);
  for (const std::string& source : like.sources()) graph.AddSource(source);
  return graph;
}

Part PartFor(const Graph& whole, absl::Span<const int> outputs) {
  std::vector<bool> needed(whole.num_values(), false);
  const auto need = [&](ValueId v) {
    if (v != kNoValue) needed[v] = true;
  };
  for (const int k : outputs) {
    need(whole.outputs()[k].value);
    need(whole.outputs()[k].becomes);
  }
  const auto is_needed = [&](const Node& node) {
    for (int r = 0; r < node.num_results; ++r) {
      if (needed[node.first_result + r]) return true;
    }
    return false;
  };
  for (NodeId id = whole.num_nodes(); id-- > 0;) {
    if (!is_needed(whole.node(id))) continue;
    for (const ValueId v : whole.node(id).operands) need(v);
  }

  Part part{EmptyLike(whole), {}};
  Graph& graph = part.graph;
  std::vector<ValueId> value_of(whole.num_values(), kNoValue);
  const auto carry = [&](ValueId from, ValueId to) {
    value_of[from] = to;
    if (whole.value(from).annotation) graph.Annotate(to, *whole.value(from).annotation);
  };
  for (size_t k = 0; k < whole.inputs().size(); ++k) {
    const ValueId v = whole.inputs()[k];
    if (!needed[v]) continue;
    carry(v, graph.AddInput(whole.type(v), whole.value(v).name));
    part.inputs.push_back(static_cast<int>(k));
  }
  for (const Node& node : whole.nodes()) {
    if (!is_needed(node)) continue;
    std::vector<ValueId> operands;
    for (const ValueId v : node.operands) {
      operands.push_back(v == kNoValue ? kNoValue : value_of[v]);
    }
    const NodeId copy = CopyNode(whole, node, operands, graph);
    for (int r = 0; r < node.num_results; ++r) {
      carry(node.first_result + r, graph.result(copy, r));
    }
  }
  for (const int k : outputs) {
    Output output = whole.outputs()[k];
    output.value = value_of[output.value];
    if (output.becomes != kNoValue) output.becomes = value_of[output.becomes];
    graph.AddOutput(output);
  }
  return part;
}

}  // namespace spmd::ir
