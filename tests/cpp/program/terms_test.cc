// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/terms.h"

#include <gtest/gtest.h>

namespace spmd::program {
namespace {

TEST(Terms, HalfTypesAreHeldWideWhileTheyAreSums) {
  const GridPtr grid = *Grid::Parse("[x=2]");
  const auto held = [&](DType dtype, const char* sharding) {
    return HeldType(dtype, *Sharding::Parse(sharding, *grid));
  };
  EXPECT_EQ(held(DType::kF16, "{}"), DType::kF16);
  EXPECT_EQ(held(DType::kF16, "{x}"), DType::kF16);
  EXPECT_EQ(held(DType::kF16, "{} unreduced(sum){x}"), DType::kF32);
  EXPECT_EQ(held(DType::kBF16, "{} unreduced(prod){x}"), DType::kF32);
  EXPECT_EQ(held(DType::kC32, "{} unreduced(sum){x}"), DType::kC64);
  EXPECT_EQ(held(DType::kF32, "{} unreduced(sum){x}"), DType::kF32);
  EXPECT_EQ(held(DType::kI8, "{} unreduced(sum){x}"), DType::kI8);
  // A maximum of maxima needs no more digits.
  EXPECT_EQ(held(DType::kBF16, "{} unreduced(max){x}"), DType::kBF16);
}

}  // namespace
}  // namespace spmd::program
