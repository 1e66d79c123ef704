// SPDX-License-Identifier: Apache-2.0
// A call of one op, written as a line of graph text:
//
//   OneOp op("f32[4,8] = aten::mm(f32[4,6], f32[6,8])");
//   op.FactorText()    "a b, b c -> a c  {a=4, b=6, c=8}"
//
// Operands are types; "_" is an absent one, "[f32[2], f32[3]]" a Tensor[] argument. Several results
// are separated by commas. Attributes follow the operands as in graph text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/registry.h"

namespace spmd::rules {

class OneOp {
 public:
  explicit OneOp(const std::string& line);

  const ir::Graph& graph() const { return graph_; }
  const ir::Node& node() const { return graph_.node(0); }
  OpCall call() const { return OpCall::Of(graph_, node()); }
  const Rule& rule() const;
  // The rule's answer as text; the message of an error.
  std::string FactorText() const;
  // The inferred result types, separated by ", "; the message of an error.
  std::string TypeText() const;
  // The graph with the op replaced by its decomposition; every result that has a
  // value is an output.
  ir::Graph Decomposed() const;

 private:
  ir::Graph graph_;
};

}  // namespace spmd::rules
