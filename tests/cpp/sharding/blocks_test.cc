// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "csrc/sharding/spec.h"
#include "csrc/sharding/spec_text.h"

namespace spmd {
namespace {

PartitionSpec Spec(absl::string_view text) {
  Scanner in(text);
  return *ParseSpecText(in);
}

TEST(Blocks, AreTwoDimensionsApart) {
  const auto apart = TakeBlocksApart("", Spec("('data', blocks(3, 'model'))"), {64, 192}, {192, 1});
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_EQ(apart->dims, (Dims{64, 3, 64}));
  EXPECT_EQ(apart->strides, (Dims{192, 64, 1}));
  EXPECT_EQ(SpecToString(apart->spec), "('data', None, 'model')");
}

TEST(Blocks, OfATransposedTensor) {
  const auto apart = TakeBlocksApart("", Spec("(blocks(2, 'model'), None)"), {6, 5}, {1, 6});
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_EQ(apart->dims, (Dims{2, 3, 5}));
  EXPECT_EQ(apart->strides, (Dims{3, 1, 6}));
}

TEST(Blocks, AreOfOneSize) {
  const auto apart = TakeBlocksApart("mark_sharding", Spec("(blocks(3, 'model'),)"), {10}, {1});
  EXPECT_EQ(apart.status().message(),
            "mark_sharding: spec (blocks(3, 'model'),) says that dimension 0 is 3 blocks of one "
            "size, but its size is 10, which 3 does not divide; blocks(n, axes) needs a dimension "
            "of size n * k");
}

}  // namespace
}  // namespace spmd
