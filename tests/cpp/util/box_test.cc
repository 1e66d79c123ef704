// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/box.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

namespace spmd {
namespace {

std::set<std::pair<int64_t, int64_t>> Points(const Box& box) {
  std::set<std::pair<int64_t, int64_t>> points;
  for (int64_t i = box[0].begin; i < box[0].end; ++i) {
    for (int64_t j = box[1].begin; j < box[1].end; ++j) points.insert({i, j});
  }
  return points;
}

Box RandomBox(std::mt19937& rng) {
  Box box;
  for (int d = 0; d < 2; ++d) {
    const int64_t begin = static_cast<int64_t>(rng() % 8) - 2;
    box.push_back({begin, begin + static_cast<int64_t>(rng() % 5)});
  }
  return box;
}

TEST(BoxTest, IntervalsOfAnyBoundsHaveASize) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ((Interval{kLeast, kMost}.size()), kMost);
  EXPECT_EQ((Interval{kMost, kLeast}.size()), 0);
  EXPECT_EQ((Interval{0, kMost}.size()), kMost);
  EXPECT_FALSE((Interval{0, kMost}.HasPositions()));
  EXPECT_TRUE((Interval{-kMaxElements, kMaxElements}.HasPositions()));
}

TEST(BoxTest, AgreesWithSetsOfPoints) {
  std::mt19937 rng(4);
  for (int i = 0; i < 3000; ++i) {
    const Box a = RandomBox(rng), b = RandomBox(rng);
    const auto pa = Points(a), pb = Points(b);
    std::set<std::pair<int64_t, int64_t>> both;
    for (const auto& p : pa) {
      if (pb.count(p)) both.insert(p);
    }
    EXPECT_EQ(Points(Intersect(a, b)), both) << BoxToString(a) << " " << BoxToString(b);
    EXPECT_EQ(NumElements(a), static_cast<int64_t>(pa.size()));
    EXPECT_EQ(IsEmpty(a), pa.empty());
    EXPECT_EQ(Contains(a, b), both == pb);
  }
}

TEST(BoxTest, RankZeroHoldsOneElement) {
  EXPECT_EQ(NumElements(Box{}), 1);
  EXPECT_FALSE(IsEmpty(Box{}));
  EXPECT_EQ(BoxToString(WholeBox({})), "[]");
}

TEST(BoxTest, PrintsIntervals) {
  EXPECT_EQ(BoxToString(WholeBox({4, 16})), "[0:4, 0:16]");
  EXPECT_EQ(BoxDims({{1, 4}, {3, 2}}), (Dims{3, 0}));
}

}  // namespace
}  // namespace spmd
