// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/ir/graph.h"
#include "csrc/ir/verifier.h"
#include "tests/cpp/ir/mutated.h"
#include "tests/cpp/ir/random_graph.h"

namespace spmd::ir {
namespace {

constexpr const char* kStep = R"text(mesh @m [data=2, model=4]
mesh @r [x=4] devices=[3,1,0,2]
graph {
  scalar $0: float
  scalar $1: int
  %x: f32[32,128] @m! {data},{}
  %fc1.weight: f32[256,128] @m~ {model},{}
  %loss: f32[] @m
  %0: f32[32,256] @m= {data},{model} = aten::linear(%x, %fc1.weight, _) cut {0: data chunk=20, 2: model:1,model:0} at "train.py:12"
  %1: f32[32], %2: i64[32] @r {x} = aten::max.dim(%0, dim=1, keepdim=false) task(7) cut @r {}
  %3: f32[256,128] = mylib::step([%x, %0], [], %fc1.weight, [_], lr=$0, eps=1e-05, mode="a, \")") updates(2)
  = mylib::check(%2)
  %4: f32[] @m= unreduced(sum){data} = aten::sum(%1)
  return %3 -> %fc1.weight, %4 unreduced, %1 held
}
)text";

TEST(GraphText, RoundTripsByHand) {
  const auto graph = Graph::Parse(kStep);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(Verify(*graph).ok()) << Verify(*graph);
  EXPECT_EQ(graph->ToString(), kStep);
}

TEST(GraphText, IsReadIntoTheRightPlaces) {
  const Graph graph = *Graph::Parse(kStep);
  ASSERT_EQ(graph.num_nodes(), 5);
  EXPECT_EQ(graph.num_values(), 8);
  EXPECT_EQ(graph.inputs().size(), 3u);
  const Node& linear = graph.node(0);
  EXPECT_EQ(linear.operands, (absl::InlinedVector<ValueId, 4>{0, 1, kNoValue}));
  EXPECT_EQ(graph.sources()[linear.source], "train.py:12");
  ASSERT_EQ(linear.cut->size(), 2u);
  EXPECT_EQ((*linear.cut)[1], (FactorCut{2, {2, 1}}));
  EXPECT_EQ(graph.node(1).task, 7);
  EXPECT_EQ(graph.node(1).cut_grid, 1);
  EXPECT_EQ(graph.node(2).updates, 2 + 0);
  EXPECT_EQ(graph.node(2).groups, (absl::InlinedVector<OperandGroup, 1>{{0, 2}, {2, 0}, {3, 1}}));
  EXPECT_EQ(graph.node(3).num_results, 0);
  EXPECT_EQ(graph.value(1).annotation->hold, Hold::kSettled);
  EXPECT_EQ(graph.outputs()[0].becomes, 1);
  EXPECT_TRUE(graph.outputs()[1].may_stay_unreduced);
}

TEST(GraphText, RoundTripsRandomGraphs) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Graph graph = RandomGraph(random);
    ASSERT_TRUE(Verify(graph).ok()) << Verify(graph) << "\n" << graph.ToString();
    const std::string text = graph.ToString();
    const auto read = Graph::Parse(text);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    ASSERT_EQ(read->ToString(), text);
    ASSERT_EQ(read->ComputeFingerprint(), graph.ComputeFingerprint()) << text;
    for (NodeId n = 0; n < graph.num_nodes(); ++n) {
      ASSERT_EQ(read->node(n).operands, graph.node(n).operands);
      ASSERT_EQ(read->node(n).groups, graph.node(n).groups);
      ASSERT_EQ(read->node(n).attributes, graph.node(n).attributes) << text;
      ASSERT_EQ(read->node(n).cut, graph.node(n).cut);
    }
  }
}

TEST(GraphText, SkipsCommentsAndBlanks) {
  const auto graph = Graph::Parse(
      "# checks: comments\n\ngraph {   // here too\n\t%x:f32[ 2 , 3 ]\n"
      "  %0: f32[2,3] = a::b(%x,s=\"# no // comment\")# yes\n\n return %0\n}\n// end");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->ToString(),
            "graph {\n  %x: f32[2,3]\n  %0: f32[2,3] = a::b(%x, s=\"# no // comment\")\n"
            "  return %0\n}\n");
}

struct BadText {
  const char* text;
  const char* error;
};
class GraphParseErrors : public testing::TestWithParam<BadText> {};

TEST_P(GraphParseErrors, NameTheLineAndTheText) {
  const auto graph = Graph::Parse(GetParam().text);
  ASSERT_FALSE(graph.ok()) << graph->ToString();
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(graph.status().message()), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphParseErrors,
    testing::Values(
        BadText{"", "line 1: expected 'graph {', but the text ends"},
        BadText{"mesh @m [x=2]\n", "line 1: expected 'graph {', but the text ends"},
        BadText{"graph {\n", "line 1: expected 'return', but the text ends"},
        BadText{"graph {\n\n return\n", "line 3: expected '}', but the text ends"},
        BadText{"hello", "line 1: expected 'mesh' or 'graph {' at 'hello' in 'hello'"},
        BadText{"graph {\nreturn\n}\nmore",
                "line 4: expected nothing after the '}' of the graph at 'more' in 'more'"},
        BadText{"mesh @m [x=2]\nmesh @m [y=2]", "line 2: mesh '@m' is already defined"},
        BadText{"graph {\n %x f32[2]", "line 2: expected ':' at 'f32[2]' in '%x f32[2]'"},
        BadText{"graph {\n %x: f33[2]",
                "line 2: 'f33' is no element type; expected one like f32, bf16, i64 or bool"},
        BadText{"graph {\n %x: f32[-1]",
                "line 2: expected sizes >= 0 with a product of at most 2^48 at '-1]' in "
                "'%x: f32[-1]'"},
        BadText{"graph {\n %x: f32[2]\n %x: f32[2]",
                "line 3: value '%x' is already defined on line 2"},
        BadText{"graph {\n %0: f32[2] = a::b(%x)",
                "line 2: value '%x' is used before it is defined"},
        BadText{"graph {\n %0: f32[2] = a::b(%0)",
                "line 2: value '%0' is used before it is defined"},
        BadText{"graph {\n %007: f32[2]",
                "line 2: '%007' is no value; after '%' comes an identifier or a number of at most "
                "nine digits"},
        BadText{"graph {\n %x: f32[2] @m {}", "line 2: there is no mesh '@m'"},
        BadText{"graph {\n %0: f32[2] = a::b(dim=1, dim=2)",
                "line 2: attribute 'dim' is given twice"},
        BadText{"graph {\n %x: f32[2]\n %0: f32[2] = a::b(dim=1, %x)",
                "line 3: expected operands before attributes, not an operand at '%x)' in '%0: "
                "f32[2] = a::b(dim=1, %x)'"},
        BadText{
            "graph {\n %x: f32[2], %y: f32[2]",
            "line 2: expected '=' after several results at the end of '%x: f32[2], %y: f32[2]'"},
        BadText{"graph {\n scalar $1: float", "line 2: scalar $1 is out of order; expected $0"},
        BadText{
            "graph {\n %0: f32[2] = a::b() cut {0: x}",
            "line 2: expected no cut in a graph without a mesh at '{0: x}' in '%0: f32[2] = a::b() "
            "cut {0: x}'"},
        BadText{"graph {\n %0: f32[2] = a::b() updates(-2)",
                "line 2: updates(-2) names no operand"}));

TEST(GraphFuzz, MutatedTextNeverCrashesAndWhatIsReadPrintsTheSame) {
  std::mt19937 random(2);
  int read = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string text = Mutated(RandomGraph(random).ToString(), random);
    const auto graph = Graph::Parse(text);
    if (!graph.ok()) {
      ASSERT_THAT(std::string(graph.status().message()), testing::StartsWith("line ")) << text;
      continue;
    }
    if (!Verify(*graph).ok()) continue;
    ++read;
    const auto again = Graph::Parse(graph->ToString());
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    ASSERT_EQ(again->ToString(), graph->ToString());
  }
  EXPECT_GT(read, 200);  // the mutations are not so wild that nothing is tested
}

}  // namespace
}  // namespace spmd::ir
