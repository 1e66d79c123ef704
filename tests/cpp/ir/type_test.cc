// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/type.h"

#include <gtest/gtest.h>

namespace spmd {
namespace {

TEST(TensorTypeText, RoundTrips) {
  for (const char* text : {"f32[]", "bool[0]", "c128[1,2,3]", "f8e5m2[7]", "i64[0,1000000]"}) {
    const auto type = TensorType::Parse(text);
    ASSERT_TRUE(type.ok()) << type.status();
    EXPECT_EQ(type->ToString(), text);
  }
  EXPECT_EQ(TensorType::Parse("bf16[3,5]")->ByteSize(), 30);
}

TEST(TensorTypeText, RefusesWhatCannotBeCounted) {
  for (const char* text : {"f32[1000000000000,1000000000000]", "f32[0,1000000000000,1000000000000]",
                           "f32[2", "f32", "[2]", "f32[2]x", "f32[a]"}) {
    EXPECT_FALSE(TensorType::Parse(text).ok()) << text;
  }
}

constexpr int kNumDTypes = static_cast<int>(DType::kC128) + 1;

TEST(DTypes, NamesAreReadAgainAndSayTheSize) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ByteSize(DType::kBool), 1);
  EXPECT_EQ(ByteSize(DType::kF8E5M2), 1);
  EXPECT_EQ(ByteSize(DType::kBF16), 2);
  EXPECT_EQ(ByteSize(DType::kC128), 16);
  EXPECT_EQ(ParseDType("float").status().message(),
            "'float' is no element type; expected one like f32, bf16, i64 or bool");
}

TEST(DTypes, EachIsOfOneKind) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(IsFloating(dtype) + IsComplex(dtype) + IsIntegral(dtype, /*include_bool=*/true), 1)
        << DTypeName(dtype);
    EXPECT_EQ(ByteSize(dtype), (IsComplex(dtype) ? 2 : 1) * ByteSize(RealOf(dtype)));
  }
  EXPECT_FALSE(IsIntegral(DType::kBool, /*include_bool=*/false));
  EXPECT_EQ(RealOf(DType::kC64), DType::kF32);
}

TEST(TensorSize, AnEmptyDimensionHidesNoOverflow) {
  EXPECT_TRUE(IsTensorSize({}));
  EXPECT_TRUE(IsTensorSize({int64_t{1} << 48}));
  EXPECT_FALSE(IsTensorSize({int64_t{1} << 48, 2}));
  EXPECT_TRUE(IsTensorSize({0, int64_t{1} << 48}));
  EXPECT_FALSE(IsTensorSize({0, int64_t{1} << 48, 2}));
  EXPECT_FALSE(IsTensorSize({-1}));
}

}  // namespace
}  // namespace spmd
