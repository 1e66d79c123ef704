// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "csrc/rules/einsum.h"
#include "csrc/rules/families.h"
#include "csrc/rules/signature.h"

namespace spmd::rules {
namespace {

using testing::HasSubstr;

constexpr std::array<Row, 2> kTwice = {Einsum("aten::trace", ""), Einsum("aten::trace", "")};
constexpr std::array<Row, 1> kOther = {Einsum("aten::mm", "")};
constexpr std::array<Row, 1> kUnknown = {Einsum("aten::no_such_op", "")};
static_assert(!AreRowsOf(Family::kReduction, kTwice));
static_assert(!AreRowsOf(Family::kReduction, kOther));
static_assert(!AreRowsOf(Family::kReduction, kUnknown));
static_assert(!IsSortedAndUnique(kTwice, &Row::op));

TEST(Registry, EveryOpWithASchemaHasARule) {
  std::vector<std::string> ops;
  for (const Schema& schema : kSchemas) ops.emplace_back(schema.op());
  EXPECT_EQ(AllOps(), ops);
}

TEST(Registry, EveryRuleIsComplete) {
  for (const std::string& op : AllOps()) {
    const Rule& rule = *Find(op);
    EXPECT_EQ(rule.op, op);
    EXPECT_THAT(op, HasSubstr("::"));
    EXPECT_TRUE(rule.pattern != nullptr || rule.factors != nullptr) << op;
    EXPECT_TRUE(!rule.decompose_always || rule.decompose != nullptr) << op;
    EXPECT_TRUE(rule.each.empty() || rule.jointly.empty()) << op;
  }
}

TEST(Registry, EveryRuleHasASignature) {
  for (const std::string& op : AllOps()) EXPECT_NE(FindSignature(op), nullptr) << op;
}

TEST(Registry, FactsNameOpsWithRules) {
  for (const std::string& op : AllOps()) {
    const OpFacts& facts = FactsOf(op);
    for (const absl::string_view other : {facts.added_by, facts.batched}) {
      EXPECT_TRUE(other.empty() || Find(other) != nullptr) << op << " names " << other;
    }
    EXPECT_TRUE(!facts.puts_back || Find(facts.puts_back->view) != nullptr) << op;
    EXPECT_EQ(facts.dims == DimsUse::kBatches, !facts.batched.empty()) << op;
    EXPECT_TRUE(facts.added_by.empty() || facts.product.has_value()) << op;
    EXPECT_TRUE(facts.index_bound.empty() || facts.fails == Failure::kOnIndices) << op;
  }
}

TEST(Registry, UnknownOpsHaveNoRule) { EXPECT_EQ(Find("mylib::unknown"), nullptr); }

TEST(Registry, UsersAddRulesForOpsWithoutOne) {
  ASSERT_TRUE(Register(Einsum("mylib::project", "b s k, k n -> b s n")).ok());
  const Rule* rule = Find("mylib::project");
  ASSERT_NE(rule, nullptr);
  EXPECT_EQ(rule->einsum, "b s k, k n -> b s n");
  EXPECT_EQ(Register(Einsum("mylib::project", "a -> a")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Register(Einsum("aten::mm", "a -> a")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Find("mylib::project"), rule);
}

TEST(Registry, BadTextIsAnErrorThatQuotesIt) {
  const absl::Status bad = Register(Einsum("mylib::bad", "b s k b s n"));
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()),
              testing::AllOf(HasSubstr("'mylib::bad'"), HasSubstr("\"b s k b s n\"")));
  EXPECT_EQ(Find("mylib::bad"), nullptr);
}

}  // namespace
}  // namespace spmd::rules
