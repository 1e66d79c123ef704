// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/verifier.h"

#include <gtest/gtest.h>

namespace spmd::ir {
namespace {

const TensorType kF32 = {DType::kF32, {4, 4}};

std::string Message(const Graph& graph) { return std::string(Verify(graph).message()); }

GridPtr TestGrid() { return Grid::Of(*Mesh::Create({0, 1, 2, 3}, {2, 2}, {{"data", "model"}})); }

// One input %x of f32[4,4], over mesh @m.
Graph Base() {
  Graph graph;
  graph.AddGrid(TestGrid(), "m");
  graph.AddInput(kF32, "x");
  return graph;
}

Sharding Cut(std::vector<AxisList> dims) {
  Sharding sharding;
  for (AxisList& axes : dims) sharding.dims.push_back({std::move(axes)});
  return sharding;
}

TEST(Verifier, AcceptsTheBase) { EXPECT_TRUE(Verify(Base()).ok()); }

TEST(Verifier, Clause1Operands) {
  Graph graph = Base();
  graph.Add({.op = "a::b", .operands = {0, kNoValue, 7}}, kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): operand 2 is value number 7, which does not exist");
  graph = Base();
  graph.Add({.op = "a::b", .operands = {1}}, kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): operand 0, value '%0', is defined later; operands come "
            "from inputs and earlier nodes");
}

TEST(Verifier, Clause2Groups) {
  Graph graph = Base();
  graph.Add({.op = "a::b", .operands = {0, 0}, .groups = {{1, 2}}}, kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): operand group [1, 3) does not lie in [0, 2), what "
            "earlier groups leave of the operands");
  graph = Base();
  graph.Add({.op = "a::b", .operands = {0, 0}, .groups = {{0, 2}, {1, 1}}}, kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): operand group [1, 2) does not lie in [2, 2), what "
            "earlier groups leave of the operands");
}

TEST(Verifier, Clause3Names) {
  Graph graph = Base();
  graph.AddInput(kF32, "x");
  EXPECT_EQ(Message(graph), "verifier: values number 0 and 1 are both named '%x'");
  graph.SetName(1, "two words");
  EXPECT_EQ(Message(graph),
            "verifier: value number 1 is named 'two words', which is neither an identifier nor a "
            "number of at most nine digits");
  graph.SetName(1, "layers.0.weight");
  EXPECT_EQ(Message(graph), "");
  graph.AddGrid(TestGrid(), "m");
  EXPECT_EQ(Message(graph), "verifier: two meshes are named '@m'");
  graph = Base();
  graph.AddGrid(TestGrid(), "7");
  EXPECT_EQ(Message(graph), "verifier: mesh number 1 is named '7', which is no identifier");
}

TEST(Verifier, Clause4Outputs) {
  Graph graph = Base();
  graph.AddOutput({.value = 3});
  EXPECT_EQ(Message(graph), "verifier: output 0 is value number 3, which does not exist");

  graph = Base();
  const ValueId sum = graph.Add({.op = "a::b", .operands = {0}}, {DType::kF32, {4}});
  Graph other = graph;
  graph.AddOutput({.value = 0, .becomes = sum});
  EXPECT_EQ(Message(graph), "verifier: output 0 (%x) becomes value '%0', which is no input");
  other.AddOutput({.value = sum, .becomes = 0});
  EXPECT_EQ(Message(other),
            "verifier: output 0 (%0) of type f32[4] becomes input '%x' of type f32[4,4]; they must "
            "agree");

  graph = Base();
  graph.AddOutput({.value = 0, .becomes = 0});
  graph.AddOutput({.value = 0, .becomes = 0});
  EXPECT_EQ(Message(graph), "verifier: outputs 0 and 1 both become input '%x'");
}

TEST(Verifier, Clause5Attributes) {
  Graph graph = Base();
  graph.AddScalar(ScalarKind::kFloat);
  graph.Add({.op = "a::b", .attributes = {{"alpha", RuntimeScalar{1}}}}, kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): attribute 'alpha' is run-time scalar $1, but the graph "
            "declares 1");
  graph = Base();
  graph.Add({.op = "a::b", .attributes = {{"size", std::vector<Expr>{Expr::Size(Result(0), 1)}}}},
            kF32);
  EXPECT_EQ(Message(graph),
            "verifier: node 0 'a::b' (%0): attribute size=[size(r0,1)] holds an expression; "
            "expressions belong to programs");
  graph = Base();
  graph.Add({.op = "a::b", .attributes = {{"a b", true}}}, kF32);
  EXPECT_EQ(Message(graph), "verifier: node 0 'a::b' (%0): attribute name 'a b' is no identifier");
}

TEST(Verifier, Clause6Annotations) {
  Graph graph = Base();
  graph.Annotate(0, {.grid = 1, .sharding = Sharding::Replicated(2)});
  EXPECT_EQ(Message(graph), "verifier: annotation of value '%x': mesh number 1 does not exist");
  graph.Annotate(0, {.sharding = Sharding::Replicated(3)});
  EXPECT_EQ(Message(graph),
            "verifier: annotation of value '%x': the sharding has 3 dimensions, the type f32[4,4] "
            "has 2");
  graph.Annotate(0, {.sharding = Cut({{2}, {}})});
  EXPECT_EQ(Message(graph),
            "verifier: annotation of value '%x': axis number 2 is not in mesh [data=2, model=2]");
  graph.Annotate(0, {.sharding = Cut({{0}, {1, 0}})});
  EXPECT_EQ(Message(graph), "verifier: annotation of value '%x': axis 'data' is used twice");
  Sharding sharding = Cut({{0}, {}});
  sharding.unreduced = {0};
  graph.Annotate(0, {.sharding = sharding});
  EXPECT_EQ(Message(graph), "verifier: annotation of value '%x': axis 'data' is used twice");
  sharding = Cut({{0}, {}});
  sharding.dims[0].chunk = 1;
  graph.Annotate(0, {.sharding = sharding});
  EXPECT_EQ(Message(graph),
            "verifier: annotation of value '%x': chunk 1 of dimension 0 is less than 2, so that 4 "
            "elements do not fit");
  sharding = Cut({{0}, {}});
  sharding.dims[1].chunk = 4;
  graph.Annotate(0, {.sharding = sharding});
  EXPECT_EQ(Message(graph),
            "verifier: annotation of value '%x': chunk 4 of dimension 1, which is not sharded");
}

TEST(Verifier, Clause7Updates) {
  Graph graph = Base();
  graph.Add({.op = "a::b", .operands = {0, kNoValue}, .updates = 2}, kF32);
  EXPECT_EQ(Message(graph), "verifier: node 0 'a::b' (%0): updates(2) names no operand of 2");
  graph = Base();
  graph.Add({.op = "a::b", .operands = {0, kNoValue}, .updates = 1}, kF32);
  EXPECT_EQ(Message(graph), "verifier: node 0 'a::b' (%0): updates(1) names no operand of 2");
}

TEST(Verifier, Clause8Cuts) {
  Graph graph = Base();
  graph.Add({.op = "a::b", .operands = {0}}, kF32);
  graph.SetCut(0, 3, {});
  EXPECT_EQ(Message(graph), "verifier: cut of node 0 'a::b' (%0): mesh number 3 does not exist");
  graph.SetCut(0, 0, {{0, {0}}, {1, {1, 0}}});
  EXPECT_EQ(Message(graph), "verifier: cut of node 0 'a::b' (%0): axis 'data' is used twice");
  graph.SetCut(0, 0, {{0, {5}}});
  EXPECT_EQ(Message(graph),
            "verifier: cut of node 0 'a::b' (%0): axis number 5 is not in mesh [data=2, model=2]");
  graph.SetCut(0, 0, {{0, {}, 3}});
  EXPECT_EQ(Message(graph),
            "verifier: cut of node 0 'a::b' (%0): chunk 3 of factor 0; chunks are positive and "
            "need axes");
}

TEST(Verifier, Clause9ReservedOps) {
  for (const char* op : {"call", "manual"}) {
    Graph graph = Base();
    graph.AddNode({.op = op, .operands = {0}}, {});
    EXPECT_EQ(Message(graph),
              absl::StrCat("verifier: node 0 '", op, "': the op '", op, "' is reserved"));
  }
}

}  // namespace
}  // namespace spmd::ir
