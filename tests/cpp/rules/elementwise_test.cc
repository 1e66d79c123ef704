// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Elementwise, DimensionsAreAlignedAtTheRight) {
  EXPECT_EQ(OneOp("f32[4,3,5] = aten::add.Tensor(f32[4,3,5], f32[5], alpha=1)").FactorText(),
            "a b c, c -> a b c  {a=4, b=3, c=5}");
  EXPECT_EQ(OneOp("f32[4,3,5] = aten::add.Tensor(f32[3,1], f32[4,1,5], alpha=1)").FactorText(),
            "b 1, a 1 c -> a b c  {a=4, b=3, c=5}");
  EXPECT_EQ(OneOp("f32[2] = aten::mul.Tensor(f32[], f32[2])").FactorText(), "(), a -> a  {a=2}");
  EXPECT_EQ(
      OneOp("f32[2,3,5] = spmd::channel_affine(f32[1,3,1], f32[2,3,5], f32[1,3,1])").FactorText(),
      "1 b 1, a b c, 1 b 1 -> a b c  {a=2, b=3, c=5}");
}

TEST(Elementwise, AllResultsHaveTheFactors) {
  EXPECT_EQ(OneOp("f32[2,3], bool[2,3] = spmd::dropout(f32[2,3], p=0.5, seed=1, counter=2, "
                  "offset=[0,0], global_size=[2,3])")
                .FactorText(),
            "a b -> a b, a b  {a=2, b=3}");
}

TEST(Elementwise, SizesThatDoNotBroadcastAreErrors) {
  EXPECT_THAT(OneOp("f32[2] = aten::mul.Tensor(f32[2], f32[3])").FactorText(),
              HasSubstr("sizes 2 and 3 do not broadcast"));
  EXPECT_THAT(OneOp("f32[3] = aten::mul.Tensor(f32[2], f32[2])").FactorText(),
              HasSubstr("expected dims [2]"));
}

TEST(Elementwise, TypesPromoteAsPyTorchDoes) {
  auto types = [](const char* line) { return OneOp(line).TypeText(); };
  EXPECT_EQ(types("f32[2,3] = aten::add.Tensor(bf16[2,3], f32[3], alpha=1)"), "f32[2,3]");
  EXPECT_EQ(types("bf16[2] = aten::add.Tensor(bf16[2], f32[], alpha=1)"), "bf16[2]");
  EXPECT_EQ(types("f32[2] = aten::add.Tensor(f16[2], bf16[2], alpha=1)"), "f32[2]");
  EXPECT_EQ(types("f32[2] = aten::mul.Tensor(i64[2], f32[])"), "f32[2]");
  EXPECT_EQ(types("f32[2] = aten::mul.Scalar(i64[2], other=0.5)"), "f32[2]");
  EXPECT_EQ(types("i64[2] = aten::mul.Scalar(i64[2], other=2)"), "i64[2]");
  EXPECT_EQ(types("bf16[2] = aten::mul.Scalar(bf16[2], other=0.5)"), "bf16[2]");
  EXPECT_EQ(types("f32[2] = aten::div.Tensor(i64[2], i64[2])"), "f32[2]");
  EXPECT_EQ(types("bool[2] = aten::lt.Scalar(f32[2], other=0.0)"), "bool[2]");
  EXPECT_EQ(types("f32[2] = aten::where.self(bool[2], f32[2], f32[])"), "f32[2]");
  EXPECT_EQ(types("f32[2] = aten::abs(c64[2])"), "f32[2]");
  EXPECT_EQ(types("bf16[2] = spmd::cast(f32[2], dtype=bf16)"), "bf16[2]");
  EXPECT_EQ(types("i16[2] = aten::add.Tensor(u8[2], i8[2], alpha=1)"), "i16[2]");
}

TEST(Elementwise, SumsAreLinearInBothProductsInEither) {
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

TEST(Elementwise, WhatIsNotLinearSaysSo) {
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

TEST(Elementwise, AttributesAndTypesDecide) {
  EXPECT_THAT(SumLinearity("bf16[2] = spmd::cast(f32[2], dtype=bf16)").jointly, ElementsAre(0));
  EXPECT_THAT(SumLinearity("f32[2] = aten::masked_fill.Scalar(f32[2], bool[2], value=0)").jointly,
              ElementsAre(0));
  EXPECT_THAT(
      SumLinearity("f32[2] = aten::div.Tensor_mode(f32[2], f32[2], rounding_mode=none)").each,
      ElementsAre(0));
}

TEST(Elementwise, MonotoneOpsPassMaxima) {
  EXPECT_THAT(MaxLinearity("f32[2] = aten::relu(f32[2])").jointly, ElementsAre(0));
  EXPECT_THAT(MaxLinearity("f32[2] = aten::clone(f32[2])").jointly, ElementsAre(0));
  EXPECT_THAT(MaxLinearity("f32[2] = aten::neg(f32[2])").jointly, IsEmpty());
  EXPECT_THAT(MaxLinearity("f32[2] = aten::mul.Tensor(f32[2], f32[2])").each, IsEmpty());
}

}  // namespace
}  // namespace spmd::rules
