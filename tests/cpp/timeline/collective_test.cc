// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/collective.h"

#include <gtest/gtest.h>

namespace spmd::timeline {
namespace {

using machine::Route;
using machine::Routes;
using machine::Wiring;
using program::OpCode;

constexpr double kHop = 1e-6;

// A ring or line of links of 1 GB/s one way; a route's rate is that of all links of a device.
Route Ring(int64_t n) { return {0, n, Wiring::kRing, 2e9, kHop}; }
Route Line(int64_t n) { return {0, n, Wiring::kLine, 1e9, kHop}; }
Route Switch(int64_t n, double rate) { return {1, n, Wiring::kSwitch, rate, kHop}; }

TEST(CollectiveTest, AGatherOnARingUsesBothDirections) {
  // 8 GB over 8 devices: 7 GB arrive over two links.
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, {Ring(8)}, 7e9), 3.5);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kReduceScatter, {Ring(8)}, 7e9), 3.5);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllReduce, {Ring(8)}, 14e9), 7);
}

TEST(CollectiveTest, ASmallGatherTakesItsHops) {
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, {Ring(8)}, 7), 4 * kHop);
}

TEST(CollectiveTest, AGatherOnALineUsesOneLinkOfTheDeviceAtTheEnd) {
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, {Line(8)}, 7e9), 7 + 7 * kHop);
}

TEST(CollectiveTest, RingsOfATorusShareAGather) {
  // 64 GB over 8 × 8 devices: 63 GB arrive over four links.
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, {Ring(8), Ring(8)}, 63e9), 15.75);
}

TEST(CollectiveTest, TheSlowerLevelOfAClusterDecides) {
  // 16 GB over 2 nodes × 8: 8 GB arrive at a node over eight adapters of 50 MB/s, 14 GB at a GPU
  // from the others of its node.
  const Routes nodes = {Switch(2, 8 * 0.05e9), Switch(8, 1e9)};
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, nodes, 15e9), 20 + kHop);
  const Routes fast = {Switch(2, 8 * 0.5e9), Switch(8, 1e9)};
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllGather, fast, 15e9), 14 + kHop);
}

TEST(CollectiveTest, AnAllToAllCrossesTheMiddle) {
  // 64 GB over 8 devices, 8 GB each, of which 7 GB leave: a quarter of all crosses two links.
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllToAll, {Ring(8)}, 7e9), 8 + kHop);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllToAll, {Line(8)}, 7e9), 16 + kHop);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kAllToAll, {Switch(8, 1e9)}, 7e9), 7 + kHop);
}

TEST(CollectiveTest, OtherMovesTakeWhatIsSent) {
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kPermute, {Ring(8)}, 1e9), 0.5 + kHop);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpCode::kExchange, {}, 1e9), 0);
}

}  // namespace
}  // namespace spmd::timeline
