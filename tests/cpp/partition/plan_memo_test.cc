// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_memo.h"

#include <gtest/gtest.h>

#include "csrc/cost/move.h"
#include "csrc/machine/machine.h"
#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

constexpr char kLayers[] = R"(mesh @m [a=2]
graph {
  %x: f32[64,64]
  %w: f32[64,64]
  %0: f32[64,64] = aten::mm(%x, %w)
  %1: f32[64,64] = aten::mm(%0, %w)
  %2: f32[64,64] = aten::_softmax(%1, dim=1, half_to_float=false)
  return %2
})";

class PlanMemoTest : public testing::Test {
 protected:
  const PlanMemo::Planned& Plan(ir::NodeId id, const std::vector<std::string>& axes) {
    return memo_.Plan(p_.graph, p_.graph.node(id), p_.factors[id], p_.ChoiceOf(id, axes), 0);
  }

  Planned p_{kLayers};
  MoveMemo moves_{SearchPrices(machine::Nominal())};
  PlanMemo memo_{moves_};
};

TEST_F(PlanMemoTest, LayersThatAreAlikeShareAPlan) {
  EXPECT_EQ(&Plan(0, {"a"}), &Plan(1, {"a"}));
  EXPECT_NE(&Plan(0, {"a"}), &Plan(0, {"", "a"}));
  EXPECT_EQ(Plan(0, {"a"}).plan->results, p_.Plan(0, {"a"})->results);
}

TEST_F(PlanMemoTest, ShardedWorkTakesLessTimeAndWhatIsNotLegalHasNoPlan) {
  EXPECT_LT(Plan(0, {"a"}).work, Plan(0, {}).work);
  EXPECT_GT(Plan(0, {"a"}).work, 0);
  EXPECT_FALSE(Plan(2, {"", "a"}).plan.has_value());
}

TEST_F(PlanMemoTest, MovesHaveThePricesOfTheSearch) {
  const TensorType type{DType::kF32, {64, 64}};
  EXPECT_EQ(memo_.MoveSeconds(type, p_.graph, 0, p_.Of("{a},{}"), p_.Of("{},{}")),
            cost::PlanMove(type, p_.grid(), p_.Of("{a},{}"), p_.Of("{},{}"),
                           SearchPrices(machine::Nominal()))
                .seconds);
}

}  // namespace
}  // namespace spmd::partition
