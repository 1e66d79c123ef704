// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/turns.h"

#include <gtest/gtest.h>

#include "csrc/program/one_place/coalesce.h"

namespace spmd::program {
namespace {

Program Parsed(const std::string& text) {
  absl::StatusOr<Program> program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  return *std::move(program);
}
TurnOptions WhereverPossible() {
  TurnOptions options;
  options.where_it_pays = false;
  return options;
}

// A layer whose batch is sharded over data and whose weight over model.
constexpr const char* kLayer = R"(mesh @m [data=16, model=2]
program {
  %x: f32[32,12] @m {data},{}
  %w: f32[6,12] @m {model},{} donated
  %0: f32[32,6] @m {data},{model} = call aten::linear(%x, %w, _)
  %1: f32[32,6] @m {data},{} = all_gather(%0) {model} dim(1)
  free %0
  %2: f32[6,12] @m {model},{} unreduced(sum){data} = call spmd::linear_dweight(%1, %x)
  free %1
  %3: f32[6,12] @m {model},{} = all_reduce(%2) {data}
  free %2
  return %3 -> %w
}
)";

TEST(Turns, KeepsGroupsOfTheAxisThatCutsTheBatch) {
  const Program program = Parsed(kLayer);
  const AxisMask kept = AxesForTurns(program, WhereverPossible());
  // data:0, data:1 and data:2: eight groups of two.
  EXPECT_EQ(program.grids[0]->SizeOfMask(kept), 8);
  EXPECT_EQ(kept, MaskOf(program.grids[0]->SubAxesOf("data")) & ((AxisMask{1} << 3) - 1));
  const Program groups = CoalesceKeeping(program, kept);
  EXPECT_TRUE(Verify(groups).ok()) << Verify(groups);
  EXPECT_EQ(groups.ToString(), R"(mesh @m [data=16, model=2]
program {
  %x: f32[32,12] @m {data:0,data:1,data:2},{}
  %w: f32[6,12] @m {},{} donated
  %0: f32[32,6] @m {data:0,data:1,data:2},{} = call aten::linear(%x, %w, _)
  %1: f32[32,6] @m {data:0,data:1,data:2},{} = permute(%0)
  free %0
  %2: f32[6,12] @m {},{} unreduced(sum){data:0,data:1,data:2} = call spmd::linear_dweight(%1, %x)
  free %1
  %3: f32[6,12] @m {},{} = all_reduce(%2) {data:0,data:1,data:2}
  free %2
  return %3 -> %w
}
)");
}

TEST(Turns, NotWhereItSavesLittle) {
  EXPECT_EQ(AxesForTurns(Parsed(kLayer), TurnOptions()), 0u);
  TurnOptions options = WhereverPossible();
  options.more_groups_than = 8;  // all could work at once
  EXPECT_EQ(AxesForTurns(Parsed(kLayer), options), 0u);
}

// Large sharded values that are neither inputs nor outputs decide.
std::string Large(const std::string& result) {
  return R"(mesh @m [data=8]
program {
  %x: f32[8,16] @m {data},{}
  %w: f32[4194304,16] @m {},{}
  %0: f32[8,4194304] @m {data},{} = call aten::linear(%x, %w, _)
  %1: f32[8,4194304] @m {data},{} = call aten::exp(%0)
  free %0
  %2: f32[8,16] @m {data},{} = call aten::matmul(%1, %w)
  return )" +
         result + "\n}\n";
}
TEST(Turns, PayWhereLargeIntermediatesAreCut) {
  EXPECT_NE(AxesForTurns(Parsed(Large("%2")), TurnOptions()), 0u);
  // They would have to be put together again.
  EXPECT_EQ(AxesForTurns(Parsed(Large("%1")), TurnOptions()), 0u);
}

TEST(Turns, NotAlongWindowsOrUnevenShards) {
  EXPECT_EQ(AxesForTurns(Parsed(R"(mesh @m [data=2]
program {
  %x: f32[5,3] @m {data},{}
  %0: f32[5,3] @m {data},{} = call aten::exp(%x)
  return %0
}
)"),
                         WhereverPossible()),
            0u);
  EXPECT_EQ(AxesForTurns(Parsed(R"(mesh @m [data=2]
program {
  %x: f32[8,3] @m {data},{}
  %0: f32[8,3] @m {data},{} window(0: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 8) = exchange(%x)
  return %x
}
)"),
                         WhereverPossible()),
            0u);
}

TEST(Turns, NotWhereTermsComeInOrGoOut) {
  EXPECT_EQ(AxesForTurns(Parsed(R"(mesh @m [data=2]
program {
  %x: f32[8,3] @m {data},{}
  %0: f32[3] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%x, dim=[0], keepdim=false, dtype=none)
  return %0
}
)"),
                         WhereverPossible()),
            0u);
}

}  // namespace
}  // namespace spmd::program
