// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/graph.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace spmd::ir {
namespace {

TEST(GraphTest, UsersAreInNodeOrderAndOnce) {
  const Graph graph = *Graph::Parse(
      "graph {\n %x: f32[]\n %0: f32[] = a::b(%x, %x)\n %1: f32[] = a::c([%0, _], %x)\n"
      " return %x\n}");
  EXPECT_EQ(graph.Users(), (std::vector<std::vector<NodeId>>{{0, 1}, {1}, {}}));
}

TEST(GraphTest, NumbersUnnamedValuesInOrderAndAfterThoseRead) {
  Graph graph = *Graph::Parse("graph {\n %x: f32[]\n %0: f32[], %1: f32[] = a::b(%x)\n return\n}");
  EXPECT_EQ(graph.value(graph.Add({.op = "a::c"}, TensorType())).name, "2");
  EXPECT_EQ(graph.value(graph.AddInput(TensorType())).name, "3");
  graph.SetName(0, "40");
  EXPECT_EQ(graph.value(graph.AddInput(TensorType())).name, "41");
}

TEST(GraphTest, NodesNameTheirResultsAndOperandsTheirPlaces) {
  Graph graph;
  const ValueId x = graph.AddInput({DType::kF32, {2}}, "x");
  const NodeId node = graph.AddNode({.op = "a::split", .operands = {x, kNoValue}, .task = 3},
                                    {{DType::kF32, {1}}, {DType::kI64, {}}});
  EXPECT_EQ(graph.result(node), 1);
  EXPECT_EQ(graph.result(node, 1), 2);
  EXPECT_EQ(graph.value(2).producer, node);
  EXPECT_EQ(graph.value(2).index, 1);
  EXPECT_EQ(graph.value(x).producer, kNoNode);
  EXPECT_EQ(graph.type(1).ToString(), "f32[1]");
  EXPECT_EQ(graph.Users(), (std::vector<std::vector<NodeId>>{{node}, {}, {}}));
}

TEST(GraphTest, AnIdThatThereIsNotThrows) {
  const Graph graph = *Graph::Parse("graph {\n %x: f32[]\n return\n}");
  EXPECT_THROW(graph.type(kNoValue), std::out_of_range);
  EXPECT_THROW(graph.type(1), std::out_of_range);
  EXPECT_THROW(graph.node(0), std::out_of_range);
}

}  // namespace
}  // namespace spmd::ir
