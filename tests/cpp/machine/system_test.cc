// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spmd::machine {
namespace {

using ::testing::HasSubstr;

System Parsed(absl::string_view name) {
  auto system = ParseSystem(name);
  EXPECT_TRUE(system.ok()) << system.status();
  return system.ok() ? *system : System{};
}

std::string SystemError(absl::string_view name) {
  const auto system = ParseSystem(name);
  EXPECT_EQ(system.status().code(), absl::StatusCode::kInvalidArgument) << name;
  return std::string(system.status().message());
}

TEST(SystemTest, TpuSlicesAreTori) {
  EXPECT_EQ(Parsed("v5e-256").ToString(), "x 16 ring × y 16 ring");
  EXPECT_EQ(Parsed("v5p-128").ToString(), "x 4 ring × y 4 ring × z 4 ring");
  EXPECT_EQ(Parsed("v4-8").ToString(), "x 2 line × y 2 line");
  EXPECT_EQ(Parsed("v6e-8").ToString(), "x 2 line × y 4 line");
  EXPECT_EQ(Parsed("v3-2048").ToString(), "x 32 ring × y 32 ring × core 2 switch");
  EXPECT_EQ(Parsed("v3-128").num_devices(), 128);
  EXPECT_DOUBLE_EQ(Parsed("v5p-128").levels[0].rate, 90e9);
}

TEST(SystemTest, CoresOfAChipShareItsLinksAndCopyThroughMemory) {
  const System v3 = Parsed("v3-128");
  EXPECT_DOUBLE_EQ(v3.levels[0].rate, 41e9);
  EXPECT_DOUBLE_EQ(v3.levels[2].rate, 450e9);
}

TEST(SystemTest, GpusAreNodesOfEight) {
  EXPECT_EQ(Parsed("8xh100").ToString(), "gpu 8 switch");
  EXPECT_EQ(Parsed("4xa100").ToString(), "gpu 4 switch");
  EXPECT_EQ(Parsed("1xH200").ToString(), "one device");
  const System many = Parsed("128xh100");
  EXPECT_EQ(many.name, "128xh100");
  EXPECT_EQ(many.ToString(), "node 16 switch × gpu 8 switch");
  EXPECT_DOUBLE_EQ(many.levels[0].rate, 50e9);
  EXPECT_DOUBLE_EQ(many.levels[1].rate, 450e9);
  EXPECT_DOUBLE_EQ(Parsed("8xb200").device.flops, 2250e12);
  EXPECT_DOUBLE_EQ(Parsed("16xa100").levels[0].rate, 25e9);
}

TEST(SystemTest, ErrorsSayWhatIsKnown) {
  EXPECT_THAT(SystemError("8xh101"), HasSubstr("there is no GPU 'h101'; known are A100, H100"));
  EXPECT_THAT(SystemError("12xh100"), HasSubstr("12 GPUs are neither in one node of up to 8"));
  EXPECT_THAT(SystemError("v9-8"), HasSubstr("there is no generation 'v9'"));
  EXPECT_THAT(SystemError("v9-8"), HasSubstr("as in '8xh100'"));
}

TEST(SystemTest, AClusterIsNotASlice) {
  EXPECT_EQ(ParseGpuCluster("16xh200")->device.name, "16xh200");
  EXPECT_EQ(ParseGpuCluster("16xh200")->device.memory_bytes, int64_t{141'000'000'000});
  EXPECT_THAT(std::string(ParseGpuCluster("v4-8").status().message()),
              HasSubstr("'v4-8' is not of the form <number>x<model>, as in '8xh100'"));
  EXPECT_THAT(std::string(ParseGpuCluster("8x").status().message()),
              HasSubstr("there is no GPU ''"));
}

TEST(SystemTest, OneRingHasTheMachinesLinks) {
  const System ring = OneRing(Nominal(), 4);
  EXPECT_EQ(ring.ToString(), "ring 4 ring");
  EXPECT_DOUBLE_EQ(2 * ring.levels[0].rate, Nominal().link_bandwidth);
  EXPECT_TRUE(OneRing(Nominal(), 1).levels.empty());
}

}  // namespace
}  // namespace spmd::machine
