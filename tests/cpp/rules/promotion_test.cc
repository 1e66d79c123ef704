// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/promotion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using testing::HasSubstr;

TEST(Promotion, TypesPromoteAsPyTorchDoes) {
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

TEST(Promotion, SizesThatDoNotBroadcastAreErrors) {
  EXPECT_THAT(OneOp("f32[2] = aten::mul.Tensor(f32[2], f32[3])").FactorText(),
              HasSubstr("sizes 2 and 3 do not broadcast"));
  EXPECT_THAT(OneOp("f32[3] = aten::mul.Tensor(f32[2], f32[2])").FactorText(),
              HasSubstr("expected dims [2]"));
}

std::vector<DType> All() {
  std::vector<DType> all;
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) all.push_back(static_cast<DType>(i));
  return all;
}

bool IsOf8Bits(DType t) { return t == DType::kF8E4M3FN || t == DType::kF8E5M2; }

TEST(Promotion, IsTheSameBothWaysAndKeepsTheHigherKind) {
  for (const DType a : All()) {
    EXPECT_EQ(Promote(a, a), a);
    EXPECT_EQ(Promote(a, DType::kBool), a);
    for (const DType b : All()) {
      const DType both = Promote(a, b);
      EXPECT_EQ(both, Promote(b, a)) << DTypeName(a) << " " << DTypeName(b);
      EXPECT_EQ(IsComplex(both), IsComplex(a) || IsComplex(b));
      EXPECT_EQ(IsFloating(both), !IsComplex(both) && (IsFloating(a) || IsFloating(b)));
    }
  }
}

TEST(Promotion, HasRoomForBoth) {
  for (const DType a : All()) {
    for (const DType b : All()) {
      const bool same_kind = IsFloating(a) == IsFloating(b) && IsComplex(a) == IsComplex(b);
      if (!same_kind) continue;
      EXPECT_GE(ByteSize(Promote(a, b)), std::max(ByteSize(a), ByteSize(b)));
    }
  }
  EXPECT_EQ(Promote(DType::kU8, DType::kI8), DType::kI16);
  EXPECT_EQ(Promote(DType::kF16, DType::kBF16), DType::kF32);
  EXPECT_TRUE(!IsOf8Bits(Promote(DType::kF8E4M3FN, DType::kF8E5M2)));
  EXPECT_EQ(Promote(DType::kI64, DType::kF16), DType::kF16);
  EXPECT_EQ(Promote(DType::kF64, DType::kC64), DType::kC128);
}

}  // namespace
}  // namespace spmd::rules
