// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/move_memo.h"

#include <gtest/gtest.h>

#include "csrc/cost/move.h"
#include "csrc/machine/machine.h"

namespace spmd::partition {
namespace {

TEST(MoveMemo, SaysWhatThePlanCostsAndRemembersIt) {
  MoveMemo memo{cost::Prices(machine::Nominal())};
  const TensorType type{DType::kF32, {64, 32}};
  const GridPtr grid = *Grid::Parse("[a=2, b=2]");
  const char* shardings[] = {"{a},{}", "{},{a}", "{a,b},{}", "{},{} unreduced(sum){a}", "{},{}"};
  for (const int round : {0, 1}) {
    for (const char* from_text : shardings) {
      const Sharding from = *Sharding::Parse(from_text, *grid);
      for (const char* to_text : {"{a},{}", "{},{}"}) {
        const Sharding to = *Sharding::Parse(to_text, *grid);
        EXPECT_EQ(memo.Seconds(type, grid, from, to),
                  cost::PlanMove(type, *grid, from, to, memo.prices()).seconds)
            << round << " " << from_text << " " << to_text;
      }
    }
  }
  EXPECT_LE(memo.size(), 10);
}

TEST(MoveMemo, GridsThatDifferInBandwidthHavePricesOfTheirOwn) {
  MoveMemo memo{cost::Prices(machine::Nominal())};
  const TensorType type{DType::kF32, {1 << 20}};
  const GridPtr fast = *Grid::Parse("[a=2]"), slow = *Grid::Parse("[a=2@0.1]");
  const Sharding from = *Sharding::Parse("{a}", *fast), to = *Sharding::Parse("{}", *fast);
  const double seconds = memo.Seconds(type, fast, from, to);
  EXPECT_GT(memo.Seconds(type, slow, from, to), 5 * seconds);
  EXPECT_EQ(memo.Seconds(type, fast, from, to), seconds);
}

}  // namespace
}  // namespace spmd::partition
