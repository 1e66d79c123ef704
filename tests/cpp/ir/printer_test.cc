// SPDX-License-Identifier: Apache-2.0
// Errors print the graph that they are about, which may break any invariant.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "csrc/ir/graph.h"
#include "csrc/ir/verifier.h"

namespace spmd::ir {
namespace {

TEST(Printer, WhatDoesNotExistIsWrittenWithAQuestionMark) {
  Graph graph;
  graph.AddGrid(*Grid::Parse("[a=4]"), "m");
  const ValueId x = graph.AddInput({DType::kF32, {4}}, "x");
  Annotation annotation{7, Sharding::Replicated(1), Hold::kCommitted};
  annotation.sharding.dims[0].axes = {0, 50};
  graph.Annotate(x, annotation);
  Graph::NodeSpec spec;
  spec.op = "aten::cat";
  spec.operands = {x, 9, kNoValue};
  spec.groups = {{1, 5}};
  spec.source = 3;
  graph.Add(std::move(spec), {DType::kF32, {4}});
  graph.SetCut(0, 2, {{0, {1}, 0}});
  graph.AddOutput({-1});
  graph.AddOutput({x, 12});
  EXPECT_EQ(graph.ToString(), R"(mesh @m [a=4]
graph {
  %x: f32[4] @?7 {?0,?50}
  %0: f32[4] = aten::cat([?1+5], %x, %?9, _) cut @?2 {0: ?1} at "?3"
  return %?-1, %x -> %?12
}
)");
  EXPECT_FALSE(Verify(graph).ok());
}

// A graph whose references are drawn from a range around what exists.
Graph Broken(std::mt19937& random) {
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto axes = [&] {
    AxisList list;
    for (int n = draw(0, 3); n > 0; --n) list.push_back(static_cast<AxisId>(draw(-2, 4)));
    return list;
  };
  Graph graph;
  for (int n = draw(0, 2); n > 0; --n) graph.AddGrid(*Grid::Parse("[a=2, b=4]"), n == 1 ? "m" : "");
  if (draw(0, 1) == 1) graph.AddScalar(ScalarKind::kInt);
  graph.AddSource("train.py:1");
  for (int n = draw(0, 3); n > 0; --n) {
    graph.AddInput({DType::kF32, Dims(draw(0, 3), 4)}, draw(0, 3) == 0 ? "x" : "");
  }
  for (int n = draw(0, 4); n > 0; --n) {
    Graph::NodeSpec spec;
    spec.op = draw(0, 9) == 0 ? "call" : "aten::foo";
    for (int k = draw(0, 3); k > 0; --k) spec.operands.push_back(draw(-3, 9));
    for (int k = draw(0, 2); k > 0; --k) spec.groups.push_back({draw(-2, 4), draw(-2, 4)});
    if (draw(0, 2) == 0) spec.attributes.Set("alpha", RuntimeScalar{draw(-1, 2)});
    if (draw(0, 2) == 0) spec.attributes.Set("size", Expr::Size(Operand(draw(0, 3)), draw(0, 5)));
    spec.updates = draw(-3, 4);
    spec.source = draw(-3, 3);
    const std::vector<TensorType> results(draw(0, 2), {DType::kBF16, Dims(draw(0, 3), 8)});
    const NodeId id = graph.AddNode(std::move(spec), results);
    if (draw(0, 1) == 1) graph.SetCut(id, draw(-2, 3), {{draw(-4, 4), axes(), draw(-2, 9)}});
  }
  for (ValueId v = 0; v < graph.num_values(); ++v) {
    if (draw(0, 1) == 1) continue;
    Annotation annotation{draw(-1, 2), Sharding::Replicated(draw(0, 4)), Hold::kDerived};
    for (DimSharding& dim : annotation.sharding.dims) dim = {axes(), draw(-1, 9), draw(0, 1) == 1};
    annotation.sharding.unreduced = axes();
    graph.Annotate(v, std::move(annotation));
  }
  for (int n = draw(0, 3); n > 0; --n) graph.AddOutput({draw(-2, 9), draw(-2, 9), draw(0, 1) == 1});
  return graph;
}

TEST(Printer, AnyGraphPrintsAndIsVerified) {
  std::mt19937 random(4);
  int sound = 0;
  for (int i = 0; i < 20000; ++i) {
    const Graph graph = Broken(random);
    const std::string text = graph.ToString();
    ASSERT_FALSE(text.empty());
    if (!Verify(graph).ok()) continue;
    ++sound;
    const absl::StatusOr<Graph> again = Graph::Parse(text);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    ASSERT_EQ(again->ToString(), text);
  }
  EXPECT_GT(sound, 20);
}

}  // namespace
}  // namespace spmd::ir
