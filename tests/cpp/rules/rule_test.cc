// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "csrc/rules/row.h"
#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Linearity SumLinearity(const char* line) {
  const OneOp op(line);
  return LinearityOf(op.rule(), op.call(), ReduceKind::kSum);
}
Linearity MaxLinearity(const char* line) {
  const OneOp op(line);
  return LinearityOf(op.rule(), op.call(), ReduceKind::kMax);
}

TEST(LinearityOf, SumsAreLinearInBothProductsInEither) {
  EXPECT_THAT(SumLinearity("f32[2] = aten::add.Tensor(f32[2], f32[2], alpha=1)").jointly,
              ElementsAre(0, 1));
  const Linearity product = SumLinearity("f32[2] = aten::mul.Tensor(f32[2], f32[2])");
  EXPECT_THAT(product.each, ElementsAre(0, 1));
  EXPECT_THAT(product.jointly, IsEmpty());
  EXPECT_THAT(SumLinearity("f32[2] = aten::div.Tensor(f32[2], f32[2])").each, ElementsAre(0));
  EXPECT_THAT(SumLinearity("f32[2,3] = spmd::channel_affine(f32[1,3], f32[2,3], f32[1,3])").jointly,
              ElementsAre(0, 1));
  EXPECT_THAT(SumLinearity("f32[2] = aten::where.self(bool[2], f32[2], f32[2])").jointly,
              ElementsAre(1, 2));
  EXPECT_THAT(
      SumLinearity("f32[2] = aten::gelu_backward(f32[2], f32[2], approximate=\"none\")").each,
      ElementsAre(0));
}

TEST(LinearityOf, WhatIsNotLinearSaysSo) {
  for (const char* line :
       {"f32[2] = aten::add.Scalar(f32[2], other=1.0, alpha=1)", "f32[2] = aten::exp(f32[2])",
        "f32[2] = aten::relu(f32[2])", "f32[2] = aten::maximum(f32[2], f32[2])",
        "f32[2] = aten::masked_fill.Scalar(f32[2], bool[2], value=1.0)",
        "f32[2] = aten::div.Tensor_mode(f32[2], f32[2], rounding_mode=\"floor\")",
        "i64[2] = spmd::cast(f32[2], dtype=i64)", "f32[2] = spmd::cast(i64[2], dtype=f32)"}) {
    const Linearity linear = SumLinearity(line);
    EXPECT_THAT(linear.each, IsEmpty()) << line;
    EXPECT_THAT(linear.jointly, IsEmpty()) << line;
  }
}

TEST(LinearityOf, AttributesAndTypesDecide) {
  EXPECT_THAT(SumLinearity("bf16[2] = spmd::cast(f32[2], dtype=bf16)").jointly, ElementsAre(0));
  EXPECT_THAT(SumLinearity("f32[2] = aten::masked_fill.Scalar(f32[2], bool[2], value=0)").jointly,
              ElementsAre(0));
  EXPECT_THAT(
      SumLinearity("f32[2] = aten::div.Tensor_mode(f32[2], f32[2], rounding_mode=none)").each,
      ElementsAre(0));
}

TEST(LinearityOf, MonotoneOpsPassMaxima) {
  EXPECT_THAT(MaxLinearity("f32[2] = aten::relu(f32[2])").jointly, ElementsAre(0));
  EXPECT_THAT(MaxLinearity("f32[2] = aten::clone(f32[2])").jointly, ElementsAre(0));
  EXPECT_THAT(MaxLinearity("f32[2] = aten::neg(f32[2])").jointly, IsEmpty());
  EXPECT_THAT(MaxLinearity("f32[2] = aten::mul.Tensor(f32[2], f32[2])").each, IsEmpty());
}

TEST(FactorsOf, FactorsOfSizeOneAreLeftOutUnlessAskedFor) {
  const Rule rule = Einsum("a::b", "m k, k n -> m n");
  const OneOp op("f32[1,4] = a::b(f32[1,3], f32[3,4])");
  EXPECT_EQ(FactorsOf(rule, op.call())->ToString(), "1 a, a b -> 1 b  {a=3, b=4}");
  EXPECT_EQ(FactorsWithOnes(rule, op.call())->ToString(), "a b, b c -> a c  {a=1, b=3, c=4}");
}

TEST(FactorsOf, WithoutARuleNothingIsSharded) {
  const OneOp op("f32[2,3], i64[] = a::b(f32[2,3], _, f32[4])");
  const OpFactors factors = WholeFactors(op.call());
  EXPECT_THAT(factors.factors, IsEmpty());
  ASSERT_EQ(factors.operands.size(), 3u);
  EXPECT_EQ(factors.operands[0].size(), 2u);
  EXPECT_EQ(factors.operands[1].size(), 0u);
  ASSERT_EQ(factors.results.size(), 2u);
  EXPECT_EQ(factors.results[1].size(), 0u);
}

TEST(Guarded, WhatACallLacksIsAnErrorThatNamesTheCall) {
  const OneOp op("f32[2] = a::b(f32[2], dim=3)");
  const absl::StatusOr<int64_t> dim =
      Guarded(op.call(), [&]() -> absl::StatusOr<int64_t> { return op.call().Dim("dim", 1); });
  EXPECT_EQ(dim.status(),
            absl::InvalidArgumentError("a::b(f32[2], dim=3): dim=3 is out of range for rank 1"));
}

TEST(InferTypes, OnlyRulesThatSayTypesHaveThem) {
  const OneOp op("f32[2] = a::b(f32[2])");
  const Rule rule = Einsum("a::b", "m -> m");
  EXPECT_EQ(InferTypes(rule, op.call()).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(OneOp("f32[8] = aten::view(f32[8], size=[281474976710656,2])").TypeText(),
              HasSubstr("aten::view"));
}

}  // namespace
}  // namespace spmd::rules
