// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/op.h"

#include <gtest/gtest.h>

#include <string>

#include "csrc/mesh/mesh.h"

namespace spmd::cost {
namespace {

class OpCostTest : public testing::Test {
 protected:
  OpCostTest() : grid_(Grid::Of(*Mesh::Create({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4}, {{"x", "y"}}))) {}

  // Seconds of a product [m,k]·[k,n] in f32 whose factors are sharded by the axes "m", "k", "n".
  double Mm(int64_t m, int64_t k, int64_t n, const std::string& cut, const Prices& prices) {
    const Sharding factors = *Sharding::Parse(cut, *grid_);
    const auto of = [&](int a, int b) {
      Sharding sharding = Sharding::Replicated(2);
      sharding.dims[0] = factors.dims[a];
      sharding.dims[1] = factors.dims[b];
      return sharding;
    };
    OpCost cost(2, *grid_);
    cost.AddFactor(m, factors.dims[0]);
    cost.AddFactor(k, factors.dims[1]);
    cost.AddFactor(n, factors.dims[2]);
    cost.AddTensor({DType::kF32, {m, k}}, of(0, 1));
    cost.AddTensor({DType::kF32, {k, n}}, of(1, 2));
    cost.AddTensor({DType::kF32, {m, n}}, of(0, 2));
    return cost.Seconds(prices);
  }

  GridPtr grid_;
  machine::Machine machine_ = {.flops = 1e6, .memory_bandwidth = 1e9};
};

TEST_F(OpCostTest, ComputeBoundWorkIsDividedByTheShards) {
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, "{},{},{}", machine_), 2 * 64 * 32 * 16 / 1e6);
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, "{y},{},{}", machine_), 2 * 16 * 32 * 16 / 1e6);
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, "{y},{x},{}", machine_), 2 * 16 * 16 * 16 / 1e6);
}

TEST_F(OpCostTest, TheLargestTileOfUnevenShardsCounts) {
  EXPECT_DOUBLE_EQ(Mm(10, 32, 16, "{y},{},{}", machine_), 2 * 3 * 32 * 16 / 1e6);
}

TEST_F(OpCostTest, MemoryTrafficIsWhatEachDeviceHolds) {
  machine_.flops = 1e15;
  machine_.memory_bandwidth = 1e3;
  const double seconds = 4 * (16 * 32 + 32 * 16 + 16 * 16) / 1e3;
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, "{y},{},{}", machine_), seconds);
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, "{y},{},{}", Prices(machine_, {.memory = 0.5})), seconds / 2);
}

}  // namespace
}  // namespace spmd::cost
