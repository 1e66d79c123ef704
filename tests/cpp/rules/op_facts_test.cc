// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/op_facts.h"

#include <gtest/gtest.h>

#include "csrc/rules/registry.h"

namespace spmd::rules {
namespace {

TEST(OpFactsTest, OpsMayFailUnlessTheirRuleSaysOtherwise) {
  EXPECT_EQ(FactsOf("mylib::unknown").fails, Failure::kOnValues);
  EXPECT_EQ(FactsOf("aten::cholesky").fails, Failure::kOnValues);
  EXPECT_FALSE(MayFail(FactsOf("aten::mm"), DType::kF32));
  EXPECT_FALSE(MayFail(FactsOf("aten::floor_divide"), DType::kF32));
  EXPECT_TRUE(MayFail(FactsOf("aten::floor_divide"), DType::kI64));
  EXPECT_TRUE(MayFail(FactsOf("aten::gather"), DType::kF32));
}

TEST(OpFactsTest, EachKindOfFailure) {
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kBool}) {
    EXPECT_TRUE(MayFail({.fails = Failure::kOnValues}, dtype));
    EXPECT_TRUE(MayFail({.fails = Failure::kOnIndices}, dtype));
    EXPECT_FALSE(MayFail({.fails = Failure::kNever}, dtype));
  }
  EXPECT_FALSE(MayFail({.fails = Failure::kOnIntegers}, DType::kF32));
  EXPECT_TRUE(MayFail({.fails = Failure::kOnIntegers}, DType::kI64));
  EXPECT_TRUE(MayFail({.fails = Failure::kOnIntegers}, DType::kBool));
}

TEST(OpFactsTest, AnOpOfWhichNothingIsKnownHasTheCarefulDefaults) {
  const OpFacts& facts = FactsOf("mylib::unknown");
  EXPECT_TRUE(MayFail(facts, DType::kF32));
  EXPECT_FALSE(facts.same_elements || facts.looks_up || facts.adds || facts.is_operand);
  EXPECT_FALSE(facts.product.has_value() || facts.puts_back.has_value());
  EXPECT_EQ(facts.dims, DimsUse::kOther);
  EXPECT_EQ(facts.blocks, BlockUse::kNone);
}

}  // namespace
}  // namespace spmd::rules
