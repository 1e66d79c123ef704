// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/partial_plan.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

constexpr char kChain[] = R"(mesh @m [a=2]
graph {
  %x: f32[8,8] @m {a},{}
  %0: f32[8,8] = aten::relu(%x)
  %1: f32[8,8] = aten::exp(%0)
  return %1
})";

class PartialPlanTest : public testing::Test {
 protected:
  Planned p_{kChain};
  PartialPlan plan_{p_.graph, p_.factors};
  const ir::ValueId first_ = p_.ValueOf("0"), last_ = p_.ValueOf("1");
};

TEST_F(PartialPlanTest, NothingIsDecidedAtFirstAndValuesAreAsProposed) {
  EXPECT_FALSE(plan_.decided(0));
  EXPECT_EQ(p_.Text(plan_.produced(first_)), "{a},{}");
  EXPECT_EQ(plan_.users(first_), std::vector<ir::NodeId>{1});
  EXPECT_EQ(plan_.outputs(last_).size(), 1u);
  EXPECT_TRUE(plan_.outputs(first_).empty());
}

TEST_F(PartialPlanTest, UsersFindAValueAsItsProducerMakesIt) {
  plan_.Adopt(0, *p_.Plan(0, {"", "a"}));
  EXPECT_TRUE(plan_.decided(0));
  EXPECT_EQ(p_.Text(plan_.produced(first_)), "{},{a}");
  EXPECT_EQ(p_.Text(plan_.Proposal(first_)), "{a},{}");
  EXPECT_TRUE(plan_.NeedsMove(0));  // %x is {a},{}
  plan_.Adopt(1, *p_.Plan(1, {"", "a"}));
  EXPECT_FALSE(plan_.NeedsMove(1));
}

TEST_F(PartialPlanTest, ADecisionIsNewsForItsNeighbours) {
  plan_.Adopt(0, *p_.Plan(0, {"a", ""}));
  plan_.Adopt(1, *p_.Plan(1, {"a", ""}));
  plan_.ForgetNews();
  plan_.Adopt(0, *p_.Plan(0, {"", "a"}));
  EXPECT_TRUE(plan_.TakeNews(1));
  EXPECT_FALSE(plan_.TakeNews(1)) << "it has been taken";
}

TEST_F(PartialPlanTest, ATrialIsTakenBackAndMadeAgain) {
  plan_.Adopt(0, *p_.Plan(0, {"a", ""}));
  plan_.Adopt(1, *p_.Plan(1, {"a", ""}));
  plan_.BeginTrial();
  plan_.Adopt(1, *p_.Plan(1, {"", "a"}));
  PartialPlan::Changes changes = plan_.EndTrial();
  EXPECT_EQ(p_.Text(plan_.produced(last_)), "{},{a}");
  plan_.Exchange(changes);
  EXPECT_EQ(p_.Text(plan_.produced(last_)), "{a},{}");
  plan_.Exchange(changes);
  EXPECT_EQ(p_.Text(plan_.produced(last_)), "{},{a}");
}

}  // namespace
}  // namespace spmd::partition
