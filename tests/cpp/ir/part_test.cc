// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spmd::ir {
namespace {

using testing::ElementsAre;

constexpr const char* kGraph = R"(mesh @m [x=2]
graph {
  scalar $0: float
  %a: f32[4] @m {x}
  %b: f32[4]
  %c: f32[4]
  %0: f32[4] = aten::mul.Scalar(%a, other=$0)
  %1: f32[4] = aten::exp(%b) updates(0)
  %2: f32[4] = aten::add.Tensor(%0, %1)
  %3: f32[4] = aten::neg(%c)
  return %0, %1 -> %b, %2, %3
}
)";

Graph Whole() {
  auto graph = Graph::Parse(kGraph);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(PartTest, HasWhatItsOutputsNeed) {
  const Part part = PartFor(Whole(), {2});
  EXPECT_THAT(part.inputs, ElementsAre(0, 1));
  EXPECT_EQ(part.graph.num_nodes(), 3);
  EXPECT_EQ(part.graph.outputs().size(), 1u);
  EXPECT_EQ(part.graph.scalars().size(), 1u) << "slots keep their numbers";
  EXPECT_TRUE(part.graph.value(part.graph.inputs()[0]).annotation.has_value());
}

TEST(PartTest, AnOutputNeedsTheInputThatItReplaces) {
  const Part part = PartFor(Whole(), {3, 1});
  EXPECT_THAT(part.inputs, ElementsAre(1, 2));
  EXPECT_EQ(part.graph.node(part.graph.value(part.graph.outputs()[0].value).producer).op,
            "aten::neg");
  EXPECT_EQ(part.graph.outputs()[1].becomes, part.graph.inputs()[0]);
  EXPECT_EQ(part.graph.node(0).updates, 0);
}

TEST(PartTest, AllOutputsAreTheWhole) {
  const Graph whole = Whole();
  EXPECT_EQ(PartFor(whole, {0, 1, 2, 3}).graph.ToString(), whole.ToString());
}

}  // namespace
}  // namespace spmd::ir
