// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

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

}  // namespace
}  // namespace spmd::rules
