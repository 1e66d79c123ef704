// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh.h"

#include <gtest/gtest.h>

#include <numeric>

#include "absl/hash/hash.h"

namespace spmd {
namespace {

using Names = std::optional<std::vector<std::string>>;

Mesh MeshOf(std::vector<int64_t> ids, std::vector<int64_t> shape, Names names) {
  auto mesh = Mesh::Create(std::move(ids), std::move(shape), std::move(names));
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *std::move(mesh);
}

std::string ErrorOf(std::vector<int64_t> ids, std::vector<int64_t> shape, Names names) {
  const auto mesh = Mesh::Create(std::move(ids), std::move(shape), std::move(names));
  EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(mesh.status().message());
}

std::vector<int64_t> Range(int64_t n) {
  std::vector<int64_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(MeshTest, IsAValue) {
  const Mesh a = MeshOf(Range(8), {2, 4}, Names({"data", "model"}));
  const Mesh b = MeshOf(Range(8), {2, 4}, Names({"data", "model"}));
  const Mesh other = MeshOf(Range(8), {4, 2}, Names({"data", "model"}));
  EXPECT_EQ(a, b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  EXPECT_FALSE(a == other);
  EXPECT_EQ(a.size(), 8);
  EXPECT_EQ(a.rank(), 2);
}

TEST(MeshTest, Prints) {
  EXPECT_EQ(MeshOf(Range(8), {2, 4}, Names({"data", "model"})).ToString(),
            "[data=2, model=4] over devices 0..7");
  EXPECT_EQ(MeshOf({4, 5, 6, 7}, {4}, Names({"x"})).ToString(), "[x=4] over devices 4..7");
  EXPECT_EQ(MeshOf({3, 1, 2}, {3}, std::nullopt).ToString(), "[axis0=3] over devices 3, 1, 2");
  std::vector<int64_t> even(1000);
  for (int64_t i = 0; i < 1000; ++i) even[i] = 2 * i;
  EXPECT_EQ(MeshOf(even, {1000}, Names({"x"})).ToString(),
            "[x=1000] over devices 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, … "
            "and 984 more");
  EXPECT_EQ(MeshOf({5}, {}, Names(std::vector<std::string>{})).ToString(), "[] over device 5");
}

TEST(MeshTest, UnnamedAxesAreNumbered) {
  EXPECT_EQ(MeshOf(Range(4), {2, 2}, std::nullopt).AxesToString(), "[axis0=2, axis1=2]");
}

TEST(MeshTest, AxesMayBeSlower) {
  const Names names = Names({"node", "gpu"});
  const Mesh mesh = *Mesh::Create(Range(8), {2, 4}, names, {{0.1, 1}});
  EXPECT_EQ(mesh.ToString(), "[node=2@0.1, gpu=4] over devices 0..7");
  EXPECT_FALSE(mesh == MeshOf(Range(8), {2, 4}, names));
  EXPECT_EQ(*Mesh::Create(Range(8), {2, 4}, names, {{1, 1}}), MeshOf(Range(8), {2, 4}, names));
}

TEST(MeshTest, BandwidthsArePositiveAndOnePerAxis) {
  const auto error_of = [](std::vector<double> bandwidths) {
    return std::string(
        Mesh::Create(Range(8), {2, 4}, std::nullopt, std::move(bandwidths)).status().message());
  };
  EXPECT_EQ(error_of({0.5}),
            "Mesh: shape (2, 4) has 2 axes but 1 bandwidth was given; give one per axis, 1 for the "
            "machine's");
  EXPECT_EQ(error_of({1, 0}),
            "Mesh: the bandwidth of axis 1 is 0; it must be positive, in units of the machine's: "
            "0.1 for links ten times slower");
}

TEST(MeshTest, ShapeAndIdsMustAgree) {
  EXPECT_EQ(ErrorOf(Range(6), {2, 4}, std::nullopt),
            "Mesh: shape (2, 4) needs 8 device ids but 6 were given; give one id per device, or a "
            "shape whose product is 6");
  EXPECT_EQ(ErrorOf(Range(1), {4}, std::nullopt),
            "Mesh: shape (4,) needs 4 device ids but 1 was given; give one id per device, or a "
            "shape whose product is 1");
  EXPECT_EQ(ErrorOf({}, {2, 0}, std::nullopt),
            "Mesh: axis 1 of shape (2, 0) has size 0; sizes must be at least 1");
  EXPECT_EQ(ErrorOf(Range(2), {-2}, std::nullopt),
            "Mesh: axis 0 of shape (-2,) has size -2; sizes must be at least 1");
  EXPECT_EQ(ErrorOf(Range(2), {int64_t{1} << 40, int64_t{1} << 40}, std::nullopt),
            "Mesh: shape (1099511627776, 1099511627776) has more devices than can be counted");
}

TEST(MeshTest, IdsAreDistinctAndNotNegative) {
  EXPECT_EQ(ErrorOf({0, 3, 1, 3}, {4}, std::nullopt),
            "Mesh: device id 3 occurs twice, at positions 1 and 3; give each device once");
  EXPECT_EQ(ErrorOf({0, -1}, {2}, std::nullopt),
            "Mesh: device id -1 at position 1 is negative; ids are numbers from 0");
}

TEST(MeshTest, NamesAreIdentifiersOnePerAxisAllDifferent) {
  EXPECT_EQ(
      ErrorOf(Range(8), {2, 4}, Names({"data"})),
      "Mesh: shape (2, 4) has 2 axes but 1 name was given, ('data',); give one name per axis");
  EXPECT_EQ(
      ErrorOf(Range(2), {2}, Names({"a", "b", "c"})),
      "Mesh: shape (2,) has 1 axis but 3 names were given, ('a', 'b', 'c'); give one name per "
      "axis");
  EXPECT_EQ(ErrorOf(Range(8), {2, 4}, Names({"x", "x"})),
            "Mesh: axes 0 and 1 are both named 'x'; names must differ");
  EXPECT_EQ(ErrorOf(Range(8), {2, 4}, Names({"my axis", "x"})),
            "Mesh: name 'my axis' of axis 0 is not an identifier; use letters, digits and '_', as "
            "in 'my_axis'");
  EXPECT_EQ(ErrorOf(Range(2), {2}, Names({""})),
            "Mesh: name '' of axis 0 is not an identifier; use letters, digits and '_', as in "
            "'axis'");
  EXPECT_EQ(ErrorOf(Range(2), {2}, Names({"2d"})),
            "Mesh: name '2d' of axis 0 is not an identifier; use letters, digits and '_', as in "
            "'axis2d'");
}

TEST(MeshTest, AxisIndexSuggests) {
  const Mesh mesh = MeshOf(Range(8), {2, 4}, Names({"data", "model"}));
  EXPECT_EQ(*mesh.AxisIndex("model"), 1);
  EXPECT_EQ(
      mesh.AxisIndex("modle").status(),
      absl::NotFoundError("mesh [data=2, model=4] has no axis 'modle'; did you mean 'model'?"));
  EXPECT_EQ(mesh.AxisIndex("expert").status(),
            absl::NotFoundError(
                "mesh [data=2, model=4] has no axis 'expert'; its axes are 'data', 'model'"));
}

}  // namespace
}  // namespace spmd
