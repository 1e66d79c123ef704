// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_price.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/machine/machine.h"
#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

constexpr char kTwoProducts[] = R"(mesh @m [a=2]
graph {
  %x: f32[512,512] @m {a},{}
  %w: f32[512,512] @m {},{}
  %v: f32[512,512] @m {},{}
  %0: f32[512,512] = aten::mm(%x, %w)
  %1: f32[512,512] = aten::mm(%0, %v)
  return %1
})";

class PlanPriceTest : public testing::Test {
 protected:
  // The price of the whole plan if the factors of the two products are sharded by these axes.
  double Total(const std::vector<std::string>& first, const std::vector<std::string>& second) {
    PartialPlan plan(p_.graph, p_.factors);
    plan.Adopt(0, *p_.Plan(0, first));
    plan.Adopt(1, *p_.Plan(1, second));
    PlanPrice price(plan, memo_);
    EXPECT_DOUBLE_EQ(price.Around({0, 1}), price.Total());
    return price.Total();
  }
  double Work(ir::NodeId id, const std::vector<std::string>& axes) {
    return memo_.Plan(p_.graph, p_.graph.node(id), p_.factors[id], p_.ChoiceOf(id, axes), 0).work;
  }

  Planned p_{kTwoProducts};
  MoveMemo moves_{SearchPrices(machine::Nominal())};
  PlanMemo memo_{moves_};
};

TEST_F(PlanPriceTest, WithoutMovesItIsTheWork) {
  EXPECT_DOUBLE_EQ(Total({"a"}, {"a"}), Work(0, {"a"}) + Work(1, {"a"}));
}

TEST_F(PlanPriceTest, AMoveBetweenProductsCountsInFull) {
  const TensorType& type = p_.graph.type(p_.ValueOf("0"));
  const double gather = memo_.MoveSeconds(type, p_.graph, 0, p_.Of("{a},{}"), p_.Of("{},{}"));
  EXPECT_GT(gather, 0);
  EXPECT_NEAR(Total({"a"}, {}), Work(0, {"a"}) + Work(1, {}) + gather, 1e-12);
}

TEST_F(PlanPriceTest, DoingEverythingTwiceCostsMore) {
  EXPECT_LT(Total({"a"}, {"a"}), Total({}, {}));
}

}  // namespace
}  // namespace spmd::partition
