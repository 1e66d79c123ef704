// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spmd::machine {
namespace {

TEST(GpuTest, GpusAreFoundByModelAndByDriverName) {
  ASSERT_NE(FindGpu("H100"), nullptr);
  EXPECT_EQ(FindGpu("NVIDIA H100 80GB HBM3"), FindGpu("H100"));
  EXPECT_EQ(FindGpu("NVIDIA A100-SXM4-80GB")->name, "A100");
  EXPECT_DOUBLE_EQ(FindGpu("NVIDIA H200")->memory_bandwidth, 4.8e12);
  EXPECT_EQ(FindGpu("GeForce GTX 1080"), nullptr);
}

TEST(GpuTest, EveryModelIsFoundAndHasItsFigures) {
  EXPECT_THAT(GpuModels(), testing::ElementsAre("A100", "H100", "H200", "B200"));
  for (const std::string& model : GpuModels()) {
    const Machine* gpu = FindGpu(model);
    ASSERT_NE(gpu, nullptr);
    EXPECT_EQ(gpu->name, model);
    // Memory is slower than the matrix units and faster than links, links faster than InfiniBand.
    EXPECT_GT(gpu->flops, gpu->memory_bandwidth);
    EXPECT_GT(gpu->memory_bandwidth, gpu->link_bandwidth);
    EXPECT_GT(gpu->link_bandwidth, InfiniBandRate(*gpu));
    EXPECT_GT(InfiniBandRate(*gpu), 0);
  }
  EXPECT_EQ(InfiniBandRate(Nominal()), 0);
}

}  // namespace
}  // namespace spmd::machine
