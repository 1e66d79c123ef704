// SPDX-License-Identifier: Apache-2.0
// What is gathered again where memory is short.
#include "csrc/partition/gather_again.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/program/analysis.h"

namespace spmd::partition {
namespace {

using program::Program;

// `n` layers whose weights, 64 bytes each and 32 on a device, are gathered once for the forward and
// the backward pass.
Program GatheredLayers(int n) {
  std::string text = "mesh @m [x=2]\nprogram {\n  %h0: f32[4,4] @m {},{}\n";
  std::string rest;
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&text, "  %w", i, ": f32[4,4] @m {x},{}\n");
    absl::StrAppend(&rest, "  %g", i, ": f32[4,4] @m {},{} = all_gather(%w", i, ") {x} dim(0)\n");
    absl::StrAppend(&rest, "  %h", i + 1, ": f32[4,4] @m {},{} = call aten::mm(%h", i, ", %g", i,
                    ")\n");
  }
  for (int i = n; i-- > 0;) {
    absl::StrAppend(&rest, "  %d", i, ": f32[4,4] @m {},{} = call aten::mm(",
                    i == n - 1 ? absl::StrCat("%h", n) : absl::StrCat("%d", i + 1), ", %g", i,
                    ")\n");
  }
  auto program = Program::Parse(absl::StrCat(text, rest, "  return %d0\n}\n"));
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

int64_t PeakBytes(Program program) {
  program::InsertFrees(program);
  return program::PeakMemory(program).peak_bytes;
}

TEST(GatherAgain, DoesNothingWhereTheProgramFits) {
  Program program = GatheredLayers(8);
  const std::string before = program.ToString();
  EXPECT_EQ(GatherAgain(program, PeakBytes(program)).gathers, 0);
  EXPECT_EQ(program.ToString(), before);
}

TEST(GatherAgain, GathersAsLittleAgainAsFits) {
  Program whole = GatheredLayers(8);
  const int64_t before = PeakBytes(whole);
  int64_t last_gathers = 0;
  for (int64_t limit = before - 1; limit > before - 7 * 64; limit -= 64) {
    Program program = whole;
    const GatheredAgain done = GatherAgain(program, limit);
    ASSERT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    EXPECT_EQ(done.bytes_before, before);
    EXPECT_LE(PeakBytes(program), done.bytes_after);
    EXPECT_LE(done.bytes_after, limit);
    EXPECT_EQ(done.bytes, done.gathers * 64);
    EXPECT_GT(done.gathers, last_gathers);
    last_gathers = done.gathers;
    EXPECT_EQ(program.instructions.size(), whole.instructions.size() + done.gathers);
  }
}

// `n` layers whose activation the backward pass needs before and behind the element-wise call.
Program Activations(int n) {
  std::string text =
      "mesh @m [x=2]\nprogram {\n  %w: f32[4,4] @m {},{}\n  %h0: f32[4,4] @m {},{}\n";
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&text, "  %a", i, ": f32[4,4] @m {},{} = call aten::mm(%h", i, ", %w)\n");
    absl::StrAppend(&text, "  %h", i + 1, ": f32[4,4] @m {},{} = call aten::tanh(%a", i, ")\n");
  }
  std::string last = absl::StrCat("%h", n);
  for (int i = n; i-- > 0;) {
    absl::StrAppend(&text, "  %d", i, ": f32[4,4] @m {},{} = call aten::mm(", last, ", %h", i + 1,
                    ")\n");
    absl::StrAppend(&text, "  %e", i, ": f32[4,4] @m {},{} = call aten::mm(%d", i, ", %a", i,
                    ")\n");
    last = absl::StrCat("%e", i);
  }
  auto program = Program::Parse(absl::StrCat(text, "  return ", last, "\n}\n"));
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

TEST(GatherAgain, ComputesElementWiseCallsAgainWhoseOperandsAreThere) {
  Program whole = Activations(8);
  const int64_t before = PeakBytes(whole);
  for (int fewer = 1; fewer <= 5; ++fewer) {
    Program program = whole;
    const GatheredAgain done = GatherAgain(program, before - fewer * 64);
    ASSERT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    EXPECT_EQ(done.gathers, 0);
    EXPECT_GE(done.values.size(), fewer);
    EXPECT_LE(done.values.size(), fewer + 2);
    EXPECT_EQ(done.wire_bytes, 0);
    EXPECT_LE(PeakBytes(program), done.bytes_after);
    EXPECT_LE(done.bytes_after, before - fewer * 64);
  }
}

TEST(GatherAgain, HelpsWhereNothingFits) {
  Program program = GatheredLayers(8);
  const GatheredAgain done = GatherAgain(program, 0);
  EXPECT_LT(done.bytes_after, done.bytes_before);
  EXPECT_LE(PeakBytes(program), done.bytes_after);
  EXPECT_EQ(done.gathers, 7);  // the last layer's weight is used twice in a row
}

}  // namespace
}  // namespace spmd::partition
