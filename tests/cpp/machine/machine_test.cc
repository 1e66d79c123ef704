// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/machine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "csrc/machine/tpu.h"

namespace spmd::machine {
namespace {

TEST(MachineTest, NominalHasTheRatiosOfAV5eChip) {
  const Machine chip = ParseTpuSlice("v5e-8")->machine;
  EXPECT_DOUBLE_EQ(Nominal().flops / Nominal().link_bandwidth, chip.flops / chip.link_bandwidth);
  EXPECT_DOUBLE_EQ(Nominal().flops / Nominal().memory_bandwidth,
                   chip.flops / chip.memory_bandwidth);
  EXPECT_EQ(Nominal().memory_bytes, 0);
  EXPECT_EQ(Nominal().tile_rows, 1);
}

TEST(MachineTest, FreeMovesTakeNoTimeAndWorkTakesAsLong) {
  const Machine& free = NominalWithFreeMoves();
  EXPECT_TRUE(std::isinf(free.link_bandwidth));
  EXPECT_EQ(free.latency, 0);
  EXPECT_EQ(free.flops, Nominal().flops);
  EXPECT_EQ(free.memory_bandwidth, Nominal().memory_bandwidth);
}

}  // namespace
}  // namespace spmd::machine
