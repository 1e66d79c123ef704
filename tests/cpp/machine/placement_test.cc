// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "csrc/util/prime_factors.h"

namespace spmd::machine {
namespace {

using ::testing::ElementsAre;

std::vector<Placement::Factors> Axes(std::vector<int64_t> shape) {
  std::vector<Placement::Factors> axes;
  for (int64_t n : shape) axes.push_back(PrimeFactors(n));
  return axes;
}

absl::StatusOr<Placement> Choose(absl::string_view system, std::vector<int64_t> shape) {
  return Placement::Choose(*ParseSystem(system), Axes(std::move(shape)));
}

std::vector<std::string> Text(const absl::StatusOr<Placement>& placement) {
  if (!placement.ok()) return {std::string(placement.status().message())};
  std::vector<std::string> text;
  for (size_t a = 0; a < placement->axes().size(); ++a) {
    text.push_back(placement->ToString(static_cast<int>(a)));
  }
  return text;
}

TEST(PlacementTest, AnAxisTakesWholeRings) {
  EXPECT_THAT(Text(Choose("v5p-128", {16, 4})), ElementsAre("x 4 ring, y 4 ring", "z 4 ring"));
  EXPECT_THAT(Text(Choose("v5e-256", {16, 16})), ElementsAre("x 16 ring", "y 16 ring"));
  EXPECT_THAT(Text(Choose("v5e-256", {256})), ElementsAre("x 16 ring, y 16 ring"));
  EXPECT_THAT(Text(Choose("v5p-2048", {64, 16})), ElementsAre("x 8 ring, y 8 ring", "z 16 ring"));
}

TEST(PlacementTest, RatherAShortRingThanPartOfALongOne) {
  EXPECT_THAT(Text(Choose("v4-256", {32, 4})), ElementsAre("x 4 ring, z 8 ring", "y 4 ring"));
}

TEST(PlacementTest, PartOfARingIsALine) {
  EXPECT_THAT(Text(Choose("v5e-256", {128, 2}))[1], "y 2 line");
}

TEST(PlacementTest, CoresGoWithTheAxisThatIsFastestWithThem) {
  EXPECT_THAT(Text(Choose("v3-2048", {32, 64})),
              ElementsAre("x 32 ring", "y 32 ring, core 2 switch"));
  EXPECT_THAT(Text(Choose("v3-128", {8, 16})), ElementsAre("x 8 line", "y 8 line, core 2 switch"));
}

TEST(PlacementTest, TheLastAxisLiesInsideNodes) {
  EXPECT_THAT(Text(Choose("128xh100", {16, 8})), ElementsAre("node 16 switch", "gpu 8 switch"));
  EXPECT_THAT(Text(Choose("16xh100", {2, 2, 4})),
              ElementsAre("node 2 switch", "gpu 2 switch", "gpu 4 switch"));
}

TEST(PlacementTest, AMeshOfSomeDevicesLiesOnAPart) {
  EXPECT_THAT(Text(Choose("v5p-128", {4})), ElementsAre("z 4 ring"));
  EXPECT_THAT(Text(Choose("16xh100", {8})), ElementsAre("gpu 8 switch"));
  EXPECT_THAT(Text(Choose("v5p-128", {1})), ElementsAre("one place"));
  EXPECT_THAT(Text(Choose("v5p-128", {3})),
              ElementsAre("a mesh of 3 devices does not divide v5p-128, which has 64"));
}

// Bytes per second of a gather over all devices of a mesh of one axis.
double Bandwidth(absl::string_view system, std::vector<int64_t> shape, int axis = 0) {
  const Placement placement = *Choose(system, std::move(shape));
  return placement.GatherBandwidth(placement.axes()[axis]);
}

TEST(PlacementTest, BandwidthsAddUpOverRings) {
  EXPECT_DOUBLE_EQ(Bandwidth("v5p-128", {64}), 3 * 2 * 90e9);
  EXPECT_DOUBLE_EQ(Bandwidth("v5p-128", {16, 4}, 1), 2 * 90e9);
  EXPECT_DOUBLE_EQ(Bandwidth("v4-8", {4}), 2 * 45e9);  // two open lines
  EXPECT_DOUBLE_EQ(Bandwidth("v3-2048", {32, 64}, 0), 82e9);
}

TEST(PlacementTest, ANodesGpusShareWhatArrives) {
  // 15/16 of the array arrives over eight adapters of 50 GB/s; NVLink is not the limit: 7/8 at 450.
  EXPECT_DOUBLE_EQ(Bandwidth("128xh100", {128}), 127.0 / 128 / (15.0 / 16 / 400e9));
  EXPECT_DOUBLE_EQ(Bandwidth("128xh100", {16, 8}), 50e9);
  EXPECT_DOUBLE_EQ(Bandwidth("128xh100", {16, 8}, 1), 450e9);
}

TEST(PlacementTest, GroupsBetweenEachOtherShareLinks) {
  const System system = *ParseSystem("v5e-256");
  const Placement placement = *Placement::Choose(system, Axes({16, 16}));
  const std::vector<Part>& y = placement.axes()[1];                          // 2 · 2 · 2 · 2
  EXPECT_DOUBLE_EQ(placement.GatherBandwidth({y.data(), 2}), 2 * 45e9 / 4);  // ring of every fourth
  EXPECT_DOUBLE_EQ(placement.GatherBandwidth({y.data() + 2, 2}), 45e9);      // line of four
}

TEST(PlacementTest, DeviceOrderIsTheInverse) {
  const System system = *ParseSystem("v4-256");
  const Placement chosen = *Placement::Choose(system, Axes({32, 4}));
  const std::vector<int64_t> order = chosen.DeviceOrder();
  EXPECT_THAT(std::vector<int64_t>(order.begin(), order.begin() + 5), ElementsAre(0, 8, 16, 24, 1));
  const auto read = Placement::OfDevices(system, Axes({32, 4}), order);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->axes(), chosen.axes());
}

TEST(PlacementTest, AnOrderThatTheUserGaveIsRead) {
  const System system = *ParseSystem("v4-256");
  std::vector<int64_t> ids(128);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_THAT(Text(Placement::OfDevices(system, Axes({32, 4}), ids)),
              ElementsAre("x 4 ring, y 4 ring, z 2 ring", "z 4 line"));
  std::swap(ids[0], ids[5]);
  EXPECT_FALSE(Placement::OfDevices(system, Axes({32, 4}), ids).ok());
}

}  // namespace
}  // namespace spmd::machine
