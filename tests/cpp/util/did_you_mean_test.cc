// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/did_you_mean.h"

#include <gtest/gtest.h>

namespace spmd {
namespace {

TEST(DidYouMeanTest, FindsLikelyTypos) {
  const std::vector<std::string> axes = {"data", "model", "x", "pipe"};
  EXPECT_EQ(DidYouMean("modle", axes), "model");   // swapped
  EXPECT_EQ(DidYouMean("dat", axes), "data");      // dropped
  EXPECT_EQ(DidYouMean("Model", axes), "model");   // case
  EXPECT_EQ(DidYouMean("models", axes), "model");  // added
  EXPECT_EQ(DidYouMean("pype", axes), "pipe");     // replaced
}

TEST(DidYouMeanTest, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(DidYouMean("expert", {"data", "model"}), std::nullopt);
  EXPECT_EQ(DidYouMean("y", {"x"}), std::nullopt);
  EXPECT_EQ(DidYouMean("data", {}), std::nullopt);
  EXPECT_EQ(DidYouMean("", {"a"}), std::nullopt);
}

TEST(DidYouMeanTest, OfEqualsTheLongestCommonBeginningThenTheFirst) {
  EXPECT_EQ(DidYouMean("v5", {"v2", "v5e", "v5p"}), "v5e");
  EXPECT_EQ(DidYouMean("bata", {"data", "beta", "bath"}), "bath");
}

}  // namespace
}  // namespace spmd
