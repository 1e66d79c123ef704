// SPDX-License-Identifier: Apache-2.0
// Result types that differ from plain promotion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

std::string TypesOf(const char* line) { return OneOp(line).TypeText(); }

TEST(ElementwiseTypes, WhatDividesOrIsTranscendentalIsFloating) {
  EXPECT_EQ(TypesOf("f32[2] = aten::sin(i32[2])"), "f32[2]");
  EXPECT_EQ(TypesOf("f32[2] = aten::exp(bool[2])"), "f32[2]");
  EXPECT_EQ(TypesOf("f64[2] = aten::exp(f64[2])"), "f64[2]");
  EXPECT_EQ(TypesOf("bf16[2] = aten::div.Tensor(bf16[2], i64[2])"), "bf16[2]");
}

TEST(ElementwiseTypes, ComparisonsAndPredicatesAreBooleans) {
  EXPECT_EQ(TypesOf("bool[2] = aten::lt.Tensor(bf16[2], i64[2])"), "bool[2]");
  EXPECT_EQ(TypesOf("bool[2] = aten::isnan(f64[2])"), "bool[2]");
  EXPECT_EQ(TypesOf("bool[2] = aten::logical_not(c64[2])"), "bool[2]");
}

TEST(ElementwiseTypes, PartsOfComplexNumbersAreReal) {
  EXPECT_EQ(TypesOf("f64[2] = aten::abs(c128[2])"), "f64[2]");
  EXPECT_EQ(TypesOf("i64[2] = aten::abs(i64[2])"), "i64[2]");
  EXPECT_EQ(TypesOf("f32[2] = aten::angle(c64[2])"), "f32[2]");
  EXPECT_EQ(TypesOf("f32[2] = aten::angle(i64[2])"), "f32[2]");
  EXPECT_EQ(TypesOf("c128[2] = aten::complex(f64[2], f64[2])"), "c128[2]");
}

TEST(ElementwiseTypes, AConditionDoesNotPromoteAndACastSaysWhat) {
  EXPECT_EQ(TypesOf("bf16[2] = aten::where.self(bool[2], bf16[2], bf16[2])"), "bf16[2]");
  EXPECT_EQ(TypesOf("f32[2] = aten::where.self(bool[2], bf16[2], f32[2])"), "f32[2]");
  EXPECT_EQ(TypesOf("i8[2] = spmd::cast(f64[2], dtype=i8)"), "i8[2]");
}

}  // namespace
}  // namespace spmd::rules
