// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "csrc/cost/move.h"
#include "csrc/program/analysis.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::program {
namespace {

OpCode CodeOf(cost::MoveKind kind) {
  switch (kind) {
    case cost::MoveKind::kSlice:
      return OpCode::kSlice;
    case cost::MoveKind::kAllGather:
      return OpCode::kAllGather;
    case cost::MoveKind::kAllToAll:
      return OpCode::kAllToAll;
    case cost::MoveKind::kPermute:
      return OpCode::kPermute;
    case cost::MoveKind::kExchange:
      return OpCode::kExchange;
    case cost::MoveKind::kAllReduce:
      return OpCode::kAllReduce;
    case cost::MoveKind::kReduceScatter:
      return OpCode::kReduceScatter;
    case cost::MoveKind::kTerm:
      return OpCode::kTerm;
  }
  return OpCode::kFree;
}

// The program that takes the steps of a plan one after the other.
Program ProgramOf(const GridPtr& grid, const TensorType& type, const Sharding& from,
                  const cost::MovePlan& plan) {
  Program p;
  p.grids = {grid};
  p.grid_names = {"m"};
  ValueId last = p.AddValue({type, 0, from, {}, ""});
  p.inputs.push_back({last});
  for (const cost::MoveStep& step : plan.steps) {
    Instruction move;
    move.code = CodeOf(step.kind);
    move.operands = {last};
    last = p.AddValue({type, 0, step.result, {}, ""});
    move.results = {last};
    move.axes = step.axes;
    move.dim = step.dim;
    move.to_dim = step.to_dim;
    p.instructions.push_back(std::move(move));
  }
  return p;
}

Sharding WithDefaultChunks(Sharding sharding) {
  for (DimSharding& dim : sharding.dims) dim.chunk = 0;
  return sharding;
}

TEST(TrafficTest, ThePlanAndTheTableCountTheSameBytes) {
  std::mt19937 rng(32);
  for (int i = 0; i < 2000; ++i) {
    const GridPtr grid = RandomGrid(rng);
    const TensorType type{DType::kF32,
                          {static_cast<int64_t>(rng() % 17), static_cast<int64_t>(rng() % 17)}};
    const Sharding from = WithDefaultChunks(RandomSharding(rng, *grid, type.dims));
    const Sharding to = WithDefaultChunks(RandomSharding(rng, *grid, type.dims));
    const cost::MovePlan plan = cost::PlanMove(type, *grid, from, to, machine::Nominal());
    const Program p = ProgramOf(grid, type, from, plan);
    ASSERT_TRUE(Verify(p).ok()) << Verify(p) << p.ToString();
    int64_t bytes = 0;
    for (const Traffic& row : CollectiveTraffic(p)) bytes += row.wire_bytes;
    ASSERT_EQ(bytes, plan.wire_bytes) << p.ToString();
  }
}

TEST(TrafficTest, AGatherOfUnevenShardsIsWhatTheLastDeviceLacks) {
  const auto p = Program::Parse(R"(mesh @m [x=4]
program {
  %a: f32[10] @m {x}
  %0: f32[10] @m {} = all_gather(%a) {x} dim(0)
  return %0
}
)");
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_EQ(CollectiveTraffic(*p)[0].wire_bytes, 9 * 4);  // shards of 3, 3, 3 and 1
}

}  // namespace
}  // namespace spmd::program
