// SPDX-License-Identifier: Apache-2.0
// Where updates of parameters go, and what the program then holds.
#include "csrc/partition/early_updates.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/partition/memory_profile.h"
#include "csrc/program/program.h"
#include "tests/cpp/partition/first_results.h"

namespace spmd::partition {
namespace {

using program::Program;

constexpr int64_t kWeight = 256;  // bytes; an activation takes half

// Three layers, backwards. %w and %v are used once more behind their gradients.
constexpr absl::string_view kThreeLayers = R"(mesh @m [x=2]
program {
  %g: f32[4,8] @m {},{}
  %w: f32[8,8] @m {},{}
  %v: f32[8,8] @m {},{}
  %u: f32[8,8] @m {},{}
  %1: f32[8,8] @m {},{} = call spmd::linear_dweight(%g, %g) task(1)
  %2: f32[4,8] @m {},{} = call aten::mm(%g, %w) task(1)
  %3: f32[8,8] @m {},{} = call spmd::linear_dweight(%2, %2) task(1)
  %4: f32[4,8] @m {},{} = call aten::mm(%2, %v) task(1)
  %5: f32[8,8] @m {},{} = call spmd::linear_dweight(%4, %4) task(1)
  %6: f32[8,8] @m {},{} = call aten::mul.Scalar(%1, other=0.1)
  %7: f32[8,8] @m {},{} = call aten::sub.Tensor(%w, %6, alpha=1)
  %8: f32[8,8] @m {},{} = call aten::mul.Scalar(%3, other=0.1)
  %9: f32[8,8] @m {},{} = call aten::sub.Tensor(%v, %8, alpha=1)
  %10: f32[8,8] @m {},{} = call aten::mul.Scalar(%5, other=0.1)
  %11: f32[8,8] @m {},{} = call aten::sub.Tensor(%u, %10, alpha=1)
  return %7 -> %w, %9 -> %v, %11 -> %u
}
)";

TEST(EarlyUpdates, ComeBehindTheGradientAndTheLastUse) {
  Program program = *Program::Parse(kThreeLayers);
  ASSERT_TRUE(program::Verify(program).ok()) << program::Verify(program);
  // At 6: %g, three weights, three gradients, and %6.
  EXPECT_EQ(MemoryProfile(program).peak(), kWeight / 2 + 7 * kWeight);
  ASSERT_TRUE(UpdateEarly(program));
  EXPECT_TRUE(program::Verify(program).ok()) << program::Verify(program);
  EXPECT_EQ(FirstResults(program), "1 2 6 7 3 4 8 9 5 10 11");
  // At 6 and 8: %g, one activation, three weights, a gradient, and what is made of it.
  EXPECT_EQ(MemoryProfile(program).peak(), kWeight + 5 * kWeight);
  EXPECT_FALSE(UpdateEarly(program));
}

TEST(EarlyUpdates, StayWhereGradientsOrWeightsAreNeeded) {
  const auto moves = [](std::initializer_list<std::pair<absl::string_view, absl::string_view>> to) {
    Program program = *Program::Parse(absl::StrReplaceAll(kThreeLayers, to));
    return UpdateEarly(program) ? FirstResults(program) : "";
  };
  // All gradients are results.
  EXPECT_EQ(moves({{"return", "return %1, %3, %5,"}}), "");
  // Nothing is known to be replaced.
  EXPECT_EQ(moves({{" -> %w", ""}, {" -> %v", ""}, {" -> %u", ""}}), "");
  // Each update needs the last gradient, as it does with a global norm.
  EXPECT_EQ(moves({{"(%1, other=0.1)", "(%5, other=0.1)"}, {"(%3, other=0.1)", "(%5, other=0.1)"}}),
            "");
  // The call that makes %5 may fail on values.
  EXPECT_EQ(moves({{"call spmd::linear_dweight(%4, %4)", "call aten::linalg_inv(%1)"}}), "");
  // One gradient is a result.
  EXPECT_EQ(moves({{"return", "return %1,"}}), "1 2 3 4 8 9 5 6 7 10 11");
}

// The same over two devices that each have a half of the batch and of the weights.
constexpr absl::string_view kShardedLayers = R"(mesh @m [x=2]
program {
  %g: f32[8,8] @m {x},{}
  %w: f32[8,8] @m {x},{}
  %v: f32[8,8] @m {x},{}
  %u: f32[8,8] @m {x},{}
  %1: f32[8,8] @m {},{} unreduced(sum){x} = call spmd::linear_dweight(%g, %g) task(1)
  %2: f32[8,8] @m {x},{} = reduce_scatter(%1) {x} dim(0)
  %3: f32[8,8] @m {},{} = all_gather(%w) {x} dim(0)
  %4: f32[8,8] @m {x},{} = call aten::mm(%g, %3) task(1)
  %5: f32[8,8] @m {},{} unreduced(sum){x} = call spmd::linear_dweight(%4, %4) task(1)
  %6: f32[8,8] @m {x},{} = reduce_scatter(%5) {x} dim(0)
  %7: f32[8,8] @m {},{} = all_gather(%v) {x} dim(0)
  %8: f32[8,8] @m {x},{} = call aten::mm(%4, %7) task(1)
  %9: f32[8,8] @m {},{} unreduced(sum){x} = call spmd::linear_dweight(%8, %8) task(1)
  %10: f32[8,8] @m {x},{} = reduce_scatter(%9) {x} dim(0)
  %11: f32[8,8] @m {},{} = call spmd::linear_dweight(%3, %3) task(1)
  %12: f32[8,8] @m {x},{} = call aten::sub.Tensor(%w, %2, alpha=1)
  %13: f32[8,8] @m {x},{} = call aten::sub.Tensor(%v, %6, alpha=1)
  %14: f32[8,8] @m {x},{} = call aten::sub.Tensor(%u, %10, alpha=1)
  return %12 -> %w, %13 -> %v, %14 -> %u, %11
}
)";

// A gradient is on its way until its update, as long as there is room for both.
TEST(EarlyUpdates, ComeAsLateBehindACollectiveAsMemoryAllows) {
  const auto moves = [](int64_t wanted_bytes) {
    Program program = *Program::Parse(kShardedLayers);
    EXPECT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    if (!UpdateEarly(program, wanted_bytes)) return std::string();
    EXPECT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    return absl::StrCat(MemoryProfile(program).peak(), ": ", FirstResults(program));
  };
  // Four instructions behind %2 and behind %6; one is no better. %u is updated at the end.
  EXPECT_EQ(moves(0), "1408: 1 2 3 4 5 6 12 7 8 9 10 13 11 14");
  EXPECT_EQ(moves(MemoryProfile(*Program::Parse(kShardedLayers)).peak()), "");
}

}  // namespace
}  // namespace spmd::partition
