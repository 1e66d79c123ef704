// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/user_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;

std::string ErrorOf(const UserRule& user) { return std::string(FromUser(user).status().message()); }

TEST(UserRule, KindsAreThoseOfItsReducedFactors) {
  const OneOp op("f32[3] = my::best(f32[3,4])");
  const auto sum = FromUser({.op = "my::best", .text = "b k -> b"});
  const auto max = FromUser({.op = "my::best", .text = "b k -> b", .kinds = {{"k", "max"}}});
  ASSERT_TRUE(sum.ok() && max.ok()) << sum.status() << max.status();
  EXPECT_EQ(FactorsOf(*sum, op.call())->factors[1].reduce, ReduceKind::kSum);
  EXPECT_EQ(FactorsOf(*max, op.call())->factors[1].reduce, ReduceKind::kMax);
}

TEST(UserRule, LinearityAndLocalAttributesAreTaken) {
  const auto rule = FromUser({.op = "my::op",
                              .text = "b, b -> b",
                              .each = {1},
                              .local = {{"size", "[size(r0,0), 4]"}, {"n", "3"}}});
  ASSERT_TRUE(rule.ok()) << rule.status();
  EXPECT_THAT(rule->each, ElementsAre(1));
  ASSERT_EQ(rule->local_attributes.size(), 2u);
  EXPECT_EQ(rule->local_attributes[0].first, "size");
  EXPECT_EQ(AttrToString(rule->local_attributes[0].second), "[size(r0,0),4]");
  EXPECT_EQ(AttrToString(rule->local_attributes[1].second), "3");
}

TEST(UserRule, ErrorsNameTheRuleAndThePart) {
  EXPECT_EQ(ErrorOf({.op = "my::op", .text = "b k"}),
            "register_rule: the rule of 'my::op': einsum text \"b k\": expected exactly one '->'");
  EXPECT_EQ(
      ErrorOf({.op = "my::op", .text = "b k -> b", .kinds = {{"n", "max"}}}),
      "register_rule: the rule of 'my::op': kinds names 'n', which the text \"b k -> b\" does "
      "not have; its factors are b, k");
  EXPECT_EQ(
      ErrorOf({.op = "my::op", .text = "b [k] -> b", .kinds = {{"k", "max"}}}),
      "register_rule: the rule of 'my::op': 'k' is in brackets, so it is never sharded and has "
      "no kind");
  EXPECT_EQ(ErrorOf({.op = "my::op", .text = "b k -> b", .kinds = {{"b", "max"}}}),
            "register_rule: the rule of 'my::op': 'b' is in every result: there is nothing to "
            "combine");
  EXPECT_EQ(ErrorOf({.op = "my::op", .text = "b -> b", .each = {1}}),
            "register_rule: the rule of 'my::op': operand 1 is not one of the 1 of the text \"b -> "
            "b\"");
  EXPECT_EQ(ErrorOf({.op = "my::op", .text = "b -> b", .local = {{"n", "coord(0)"}}}),
            "register_rule: the rule of 'my::op': local attribute 'n': coord() is not for rules");
  EXPECT_EQ(ErrorOf({.op = "my::op", .text = "b -> b", .local = {{"n", "size(o2,0)"}}}),
            "register_rule: the rule of 'my::op': local attribute 'n' = \"size(o2,0)\" refers to "
            "operand 2; there are 1");
}

}  // namespace
}  // namespace spmd::rules
