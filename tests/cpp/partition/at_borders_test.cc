// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/at_borders.h"

#include <gtest/gtest.h>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

constexpr char kGraph[] = R"(mesh @m [a=2, b=2]
graph {
  %w: f32[64,8] @m {a},{}
  %x: f32[64,8] @m~ {b},{}
  %0: f32[64,8] = aten::relu(%x)
  %1: f32[64,8] @m {a},{} = aten::exp(%0)
  %2: f32[64,8] = aten::exp(%1)
  return %2 -> %w, %0, %2 unreduced
})";

TEST(AtBorders, AnOutputHasTheShardingOfTheInputThatItReplaces) {
  const Planned p(kGraph);
  EXPECT_EQ(p.Text(*RequiredAtOutput(p.graph, p.graph.outputs()[0])), "{a},{}");
  EXPECT_FALSE(RequiredAtOutput(p.graph, p.graph.outputs()[1]).has_value());
}

TEST(AtBorders, AMarkOnAResultIsAConstraintAndOneOnAnInputIsNot) {
  const Planned p(kGraph);
  EXPECT_TRUE(IsConstraint(p.graph, p.ValueOf("1")));
  EXPECT_FALSE(IsConstraint(p.graph, p.ValueOf("0")));
  EXPECT_FALSE(IsConstraint(p.graph, p.ValueOf("w")));
}

TEST(AtBorders, BoundariesOfAConstraintAreFreeIfTheLargestShardIsHardlyLarger) {
  const Planned p(kGraph);
  const ir::ValueId v = p.ValueOf("1");
  EXPECT_TRUE(MeetsConstraint(p.graph, v, p.Of("{a},{}"), 0));
  EXPECT_TRUE(MeetsConstraint(p.graph, v, p.Of("{a chunk=33},{}"), 0));   // 3 % more than 32
  EXPECT_FALSE(MeetsConstraint(p.graph, v, p.Of("{a chunk=34},{}"), 0));  // 6 % more
  EXPECT_FALSE(MeetsConstraint(p.graph, v, p.Of("{b},{}"), 0));
  EXPECT_FALSE(MeetsConstraint(p.graph, v, p.Of("{a},{} unreduced(sum){b}"), 0));
}

TEST(AtBorders, PartialSumsLeaveWhereTheyAreAllowedAndTakeNoMoreBytes) {
  const Planned p(kGraph);
  const ir::Output& may = p.graph.outputs()[2];
  EXPECT_TRUE(LeavesAsTerms(p.graph, may, p.Of("{a},{} unreduced(sum){b}"), 0));
  EXPECT_FALSE(LeavesAsTerms(p.graph, may, p.Of("{},{} unreduced(sum){b}"), 0));  // twice the bytes
  EXPECT_FALSE(LeavesAsTerms(p.graph, may, p.Of("{a},{}"), 0));
  EXPECT_FALSE(LeavesAsTerms(p.graph, p.graph.outputs()[1], p.Of("{a},{} unreduced(sum){b}"), 0));
}

}  // namespace
}  // namespace spmd::partition
