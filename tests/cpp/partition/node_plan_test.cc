// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/node_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

constexpr char kOps[] = R"(mesh @m [a=2, b=2]
graph {
  %x: f32[4,6]
  %w: f32[6,8]
  %0: f32[4,8] = aten::mm(%x, %w)
  %1: f32[4,8] = aten::_softmax(%0, dim=1, half_to_float=false)
  %2: f32[4,8] = aten::mul.Scalar(%0, other=2.0)
  %3: f32[32] = aten::view(%0, size=[32])
  %4: f32[4] = aten::amax(%0, dim=[1], keepdim=false)
  return %1, %2, %3, %4
})";

class NodePlanTest : public testing::Test {
 protected:
  // "{a},{}, {},{b} -> {a},{b}", or "not legal".
  std::string Text(const std::optional<NodePlan>& plan) const {
    if (!plan) return "not legal";
    std::string text;
    for (const Sharding& s : plan->operands) text += (text.empty() ? "" : ", ") + p_.Text(s);
    for (const Sharding& s : plan->results) text += " -> " + p_.Text(s);
    return text;
  }
  std::string PlanText(ir::NodeId id, const std::vector<std::string>& axes) const {
    return Text(p_.Plan(id, axes));
  }

  Planned p_{kOps};
};

TEST_F(NodePlanTest, AFactorShardsEachTensorThatHasIt) {
  EXPECT_EQ(PlanText(0, {}), "{},{}, {},{} -> {},{}");
  EXPECT_EQ(PlanText(0, {"a", "", "b"}), "{a},{}, {},{b} -> {a},{b}");
}

TEST_F(NodePlanTest, AReducedFactorLeavesPartialResultsOfItsKind) {
  EXPECT_EQ(PlanText(0, {"a", "b", ""}), "{a},{b}, {b},{} -> {a},{} unreduced(sum){b}");
  EXPECT_EQ(PlanText(4, {"", "b"}), "{},{b} -> {} unreduced(max){b}");
  EXPECT_EQ(p_.Plan(0, {"a", "b", ""})->term_axes, p_.grid().SubAxesOf("b"));
}

TEST_F(NodePlanTest, WhatIsWholeIsNotSharded) {
  EXPECT_EQ(PlanText(1, {"a", ""}), "{a},{} -> {a},{}");
  EXPECT_EQ(PlanText(1, {"", "a"}), "not legal");
}

TEST_F(NodePlanTest, AMergedDimensionHasOneIntervalPerShard) {
  EXPECT_EQ(PlanText(3, {"a", ""}), "{a},{} -> {a}");
  EXPECT_EQ(PlanText(3, {"", "a"}), "not legal");
}

TEST_F(NodePlanTest, PartialSumsPassThroughALinearOp) {
  Choice choice = p_.ChoiceOf(2, {"a", ""});
  choice.through = p_.grid().SubAxesOf("b");
  choice.through_operand = 0;
  const auto plan = PlanNode(p_.graph, p_.graph.node(2), p_.factors[2], choice, 0);
  EXPECT_EQ(Text(plan), "{a},{} unreduced(sum){b} -> {a},{} unreduced(sum){b}");
  const std::vector<ir::FactorCut> cuts = ToFactorCuts(choice);
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0], (ir::FactorCut{0, p_.grid().SubAxesOf("a")}));
  EXPECT_EQ(cuts[1], (ir::FactorCut{-2, p_.grid().SubAxesOf("b")}));
}

TEST_F(NodePlanTest, ProductsAreContractions) {
  EXPECT_TRUE(IsContraction(p_.factors[0]));
  EXPECT_FALSE(IsContraction(p_.factors[1]));
}

TEST(ActiveWindows, AreThoseOfShardedFactorsThatReadOtherIndices) {
  const Planned p(
      "mesh @m [a=2, b=2]\ngraph {\n %x: f32[8,4]\n %0: f32[4,4] = "
      "aten::slice.Tensor(%x, dim=0, start=2, end=6, step=1)\n return %0\n}");
  const TensorType* const operands[] = {&p.graph.type(0)};
  const auto active = [&](const std::vector<std::string>& axes) {
    return ActiveWindows(*p.factors[0], p.ChoiceOf(0, axes).cut, operands).size();
  };
  EXPECT_EQ(active({"a", ""}), 1u);
  EXPECT_EQ(active({"", "a"}), 0u);
}

}  // namespace
}  // namespace spmd::partition
