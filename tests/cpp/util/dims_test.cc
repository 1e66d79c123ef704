// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/dims.h"

#include <gtest/gtest.h>

#include <limits>

namespace spmd {
namespace {

TEST(DimsTest, DivisionsRoundAsNamed) {
  for (int64_t a = -20; a <= 20; ++a) {
    for (int64_t b = 1; b <= 6; ++b) {
      const int64_t floor = FloorDiv(a, b), ceil = CeilDiv(a, b);
      EXPECT_TRUE(floor * b <= a && a < (floor + 1) * b) << a << " " << b;
      EXPECT_TRUE((ceil - 1) * b < a && a <= ceil * b) << a << " " << b;
    }
  }
}

TEST(DimsTest, PrintsAndCounts) {
  EXPECT_EQ(DimsToString({2, 3}), "[2,3]");
  EXPECT_EQ(DimsToString({}), "[]");
  EXPECT_EQ(NumElements(absl::Span<const int64_t>{}), 1);
  EXPECT_EQ(NumElements({2, 0, 3}), 0);
}

TEST(DimsTest, NumbersThatAreTooLargeAreRefused) {
  EXPECT_THROW(NumElements({16, std::numeric_limits<int64_t>::min()}), std::domain_error);
  EXPECT_EQ(NumElements({16, 0, 3}), 0);
}

}  // namespace
}  // namespace spmd
