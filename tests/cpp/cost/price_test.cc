// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "csrc/cost/tile.h"
#include "csrc/machine/machine.h"
#include "csrc/sharding/layout.h"

namespace spmd::cost {
namespace {

TEST(Price, ALinkIsAsFastAsTheSlowestAxis) {
  const GridPtr grid = *Grid::Parse("[node=2@0.1, gpu=4]");
  Prices prices(machine::Nominal());
  prices.link_bandwidth = 100;
  const AxisMask node = MaskOf(grid->SubAxesOf("node")), gpu = MaskOf(grid->SubAxesOf("gpu"));
  EXPECT_DOUBLE_EQ(LinkBandwidth(prices, *grid, gpu), 100);
  EXPECT_DOUBLE_EQ(LinkBandwidth(prices, *grid, node), 10);
  EXPECT_DOUBLE_EQ(LinkBandwidth(prices, *grid, node | gpu), 10);
  EXPECT_DOUBLE_EQ(LinkBandwidth(prices, *grid, 0), 100);
}

TEST(Price, AnAllReduceIsAReduceScatterAndAGather) {
  // Four devices with results of 80 bytes: pieces of 20, of which three are sent, and sent again.
  EXPECT_DOUBLE_EQ(ReductionBytes(MoveKind::kReduceScatter, 20, 4), 60);
  EXPECT_DOUBLE_EQ(ReductionBytes(MoveKind::kAllReduce, 80, 4), 2 * 60);
}

TEST(Price, AStepIsItsStartsAndItsBytes) {
  Prices prices(machine::Nominal(), {.latency = 0.5});
  const double start = machine::Nominal().latency * 0.5;
  EXPECT_DOUBLE_EQ(StepSeconds(MoveKind::kAllGather, 300, 1, 100, prices), start + 3);
  EXPECT_DOUBLE_EQ(StepSeconds(MoveKind::kExchange, 300, 2, 100, prices), 2 * start + 3);
  EXPECT_EQ(StepSeconds(MoveKind::kSlice, 300, 1, 100, prices), 0);
  EXPECT_EQ(StepSeconds(MoveKind::kTerm, 300, 1, 100, prices), 0);
}

TEST(Price, FractionsOfBytesAreRoundedDown) {
  EXPECT_EQ(WholeBytes(7.9), 7);
  EXPECT_EQ(WholeBytes(8), 8);
  EXPECT_EQ(WholeBytes(0.1 + 0.2 + 0.7 + 7), 8);
  EXPECT_EQ(WholeBytes(8 - 1e-12), 8);
}

// A random sharding of the dims over some of the axes.
Sharding RandomSharding(const Grid& grid, int rank, std::mt19937& rng) {
  Sharding s = Sharding::Replicated(rank);
  for (int a = 0; a < grid.num_axes(); ++a) {
    const int dim = static_cast<int>(rng() % (rank + 1));
    if (dim < rank) s.dims[dim].axes.push_back(static_cast<AxisId>(a));
  }
  return s;
}

TEST(Price, AnExchangeSendsWhatTheWorstOffDeviceLacks) {
  std::mt19937 rng(12);
  for (const char* text : {"[a=2, b=3]", "[a=2, b=2, c=2]", "[a=5]"}) {
    const GridPtr grid = *Grid::Parse(text);
    for (int i = 0; i < 300; ++i) {
      const TensorType type{
          DType::kF32, {static_cast<int64_t>(1 + rng() % 12), static_cast<int64_t>(1 + rng() % 7)}};
      const Sharding from = Normalized(RandomSharding(*grid, 2, rng), type, *grid);
      const Sharding to = Normalized(RandomSharding(*grid, 2, rng), type, *grid);
      if (from == to) continue;
      const Layout before(grid, from, type.dims), after(grid, to, type.dims);
      int64_t most = 0;
      for (int64_t p = 0; p < grid->num_devices(); ++p) {
        const Box need = after.BoxAt(p);
        most = std::max(most, NumElements(need) - NumElements(Intersect(need, before.BoxAt(p))));
      }
      const Exchange exchange = DescribeExchange(type, *grid, from, to);
      const std::string what =
          from.ToString(*grid) + " to " + to.ToString(*grid) + " of " + type.ToString();
      ASSERT_TRUE(exchange.is_exact) << what;
      EXPECT_DOUBLE_EQ(exchange.bytes, 4.0 * static_cast<double>(most)) << what;
      EXPECT_GE(exchange.starts, 1) << what;
    }
  }
}

}  // namespace
}  // namespace spmd::cost
