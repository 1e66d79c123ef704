// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/prime_factors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spmd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PrimeFactors, AscendAndRepeat) {
  EXPECT_THAT(PrimeFactors(1), IsEmpty());
  EXPECT_THAT(PrimeFactors(12), ElementsAre(2, 2, 3));
  EXPECT_THAT(PrimeFactors(97), ElementsAre(97));
  EXPECT_THAT(PrimeFactors(1001), ElementsAre(7, 11, 13));
}

TEST(PrimeFactors, MultiplyToTheNumberAndHaveNoDivisors) {
  for (int64_t n = 1; n <= 2000; ++n) {
    int64_t product = 1, before = 2;
    for (const int64_t p : PrimeFactors(n)) {
      product *= p;
      EXPECT_GE(p, before) << n;
      before = p;
      for (int64_t d = 2; d < p; ++d) EXPECT_NE(p % d, 0) << p << " in " << n;
    }
    EXPECT_EQ(product, n);
  }
}

}  // namespace
}  // namespace spmd
