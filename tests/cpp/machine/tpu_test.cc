// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/tpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace spmd::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

TpuSlice Slice(absl::string_view name) {
  auto slice = ParseTpuSlice(name);
  EXPECT_TRUE(slice.ok()) << slice.status();
  return slice.ok() ? *slice : TpuSlice{};
}

std::string SliceError(absl::string_view name) {
  const auto slice = ParseTpuSlice(name);
  EXPECT_EQ(slice.status().code(), absl::StatusCode::kInvalidArgument) << name;
  return std::string(slice.status().message());
}

double Gib(const TpuSlice& slice) {
  return static_cast<double>(slice.machine.memory_bytes) / (int64_t{1} << 30);
}

TEST(TpuSliceTest, V4CountsCoresAndHasAChipPerDevice) {
  const TpuSlice slice = Slice("v4-16");
  EXPECT_EQ(slice.generation, "v4");
  EXPECT_EQ(slice.num_chips, 8);
  EXPECT_EQ(slice.num_devices(), 8);
  EXPECT_THAT(slice.topology, ElementsAre(2, 2, 2));
  EXPECT_THAT(slice.wrap, ElementsAre(false, false, false));
  EXPECT_EQ(slice.machine.name, "v4-16");
  EXPECT_DOUBLE_EQ(slice.machine.flops, 275e12);
  EXPECT_DOUBLE_EQ(slice.machine.memory_bandwidth, 1200e9);
  EXPECT_DOUBLE_EQ(slice.link_rate, 45e9);
  EXPECT_DOUBLE_EQ(slice.machine.link_bandwidth, 90e9);
  EXPECT_NEAR(Gib(slice), 30.75, 1e-6);
}

TEST(TpuSliceTest, V2AndV3HaveADevicePerCore) {
  const TpuSlice v3 = Slice("v3-32");
  EXPECT_EQ(v3.num_chips, 16);
  EXPECT_EQ(v3.num_devices(), 32);
  EXPECT_THAT(v3.topology, ElementsAre(4, 4));
  EXPECT_THAT(v3.wrap, ElementsAre(false, false));
  EXPECT_DOUBLE_EQ(v3.machine.flops, 61.5e12);
  EXPECT_NEAR(Gib(v3), 15.48, 1e-6);
  EXPECT_EQ(Slice("v2-8").num_devices(), 8);
  EXPECT_NEAR(Gib(Slice("v2-8")), 7.48, 1e-6);
}

TEST(TpuSliceTest, V5eAndV6eCountChips) {
  const TpuSlice slice = Slice("v5e-64");
  EXPECT_EQ(slice.num_devices(), 64);
  EXPECT_THAT(slice.topology, ElementsAre(8, 8));
  EXPECT_NEAR(Gib(slice), 15.75, 1e-6);
  EXPECT_EQ(Slice("v5litepod-64").name, "v5e-64");
  EXPECT_THAT(Slice("v6e-8").topology, ElementsAre(2, 4));
  EXPECT_EQ(Slice("v6e-8").machine.tile_columns, 256);
  EXPECT_EQ(Slice("v5e-1").num_devices(), 1);
}

TEST(TpuSliceTest, RingsAreWhereAnAxisSpansThePodOrTheSliceIsMadeOfCubes) {
  EXPECT_THAT(Slice("v5e-128").wrap, ElementsAre(false, true));
  EXPECT_THAT(Slice("v5e-256").wrap, ElementsAre(true, true));
  EXPECT_THAT(Slice("v3-1024").wrap, ElementsAre(false, true));
  EXPECT_THAT(Slice("v4-64").wrap, ElementsAre(false, false, false));
  EXPECT_THAT(Slice("v4-128").wrap, ElementsAre(true, true, true));
}

TEST(TpuSliceTest, TopologiesAreThoseOfTheDocumentation) {
  const std::vector<std::pair<const char*, std::vector<int64_t>>> expected = {
      {"v4-8", {2, 2, 1}},      {"v4-32", {2, 2, 4}},     {"v4-64", {2, 4, 4}},
      {"v4-128", {4, 4, 4}},    {"v4-256", {4, 4, 8}},    {"v4-4096", {8, 16, 16}},
      {"v5p-384", {4, 4, 12}},  {"v5p-768", {4, 8, 12}},  {"v5p-1280", {4, 8, 20}},
      {"v5p-1536", {8, 8, 12}}, {"v5p-2048", {8, 8, 16}}, {"v5p-12288", {16, 16, 24}},
      {"v2-32", {4, 4}},        {"v2-256", {8, 16}},      {"v3-2048", {32, 32}},
      {"v5e-4", {2, 2}},        {"v5e-16", {4, 4}},       {"v5e-32", {4, 8}}};
  for (const auto& [name, topology] : expected) {
    EXPECT_THAT(Slice(name).topology, ElementsAreArray(topology)) << name;
  }
}

TEST(TpuSliceTest, EveryLegalSliceIsConsistent) {
  int legal = 0;
  for (const std::string& generation : TpuGenerations()) {
    for (int size = 1; size <= 1024; ++size) {
      const auto slice = ParseTpuSlice(absl::StrCat(generation, "-", size));
      if (!slice.ok()) continue;
      ++legal;
      int64_t chips = 1;
      for (int64_t n : slice->topology) chips *= n;
      EXPECT_EQ(chips, slice->num_chips) << slice->name;
      EXPECT_EQ(slice->wrap.size(), slice->topology.size()) << slice->name;
      EXPECT_GT(slice->machine.memory_bytes, 0) << slice->name;
      EXPECT_LE(slice->chips_per_host, slice->num_chips) << slice->name;
    }
  }
  EXPECT_GT(legal, 50);
}

TEST(TpuSliceTest, ErrorsSayWhatWouldBeRight) {
  EXPECT_EQ(SliceError("v4"),
            "TPU slice 'v4' is not of the form <generation>-<size>, as in 'v4-16' or 'v5e-8'");
  EXPECT_EQ(SliceError("v5-8"),
            "TPU slice 'v5-8': there is no generation 'v5'; did you mean 'v5e'? Known are v2, v3, "
            "v4, v5e, v5p, v6e");
  EXPECT_EQ(SliceError("tpu-8"),
            "TPU slice 'tpu-8': there is no generation 'tpu'; known are v2, v3, v4, v5e, v5p, v6e");
  EXPECT_EQ(SliceError("v4-20"),
            "TPU slice 'v4-20': there is no v4 slice of 20 TensorCores (two per chip); the nearest "
            "is 'v4-16' or 'v4-32'");
  EXPECT_EQ(SliceError("v4-17"),
            "TPU slice 'v4-17': there is no v4 slice of 17 TensorCores (two per chip); the nearest "
            "is 'v4-16' or 'v4-32'");
  EXPECT_EQ(SliceError("v5e-512"),
            "TPU slice 'v5e-512': there is no v5e slice of 512 chips; the nearest is 'v5e-256'");
  EXPECT_EQ(
      SliceError("v3-2"),
      "TPU slice 'v3-2': there is no v3 slice of 2 TensorCores (two per chip); the nearest is "
      "'v3-8'");
  EXPECT_EQ(SliceError("v5e-0"),
            "TPU slice 'v5e-0': there is no v5e slice of 0 chips; the nearest is 'v5e-1'");
  EXPECT_EQ(SliceError("v5e--4"),
            "TPU slice 'v5e--4': there is no generation 'v5e-'; did you mean 'v5e'? Known are v2, "
            "v3, v4, v5e, v5p, v6e");
}

}  // namespace
}  // namespace spmd::machine
