// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/match.h"
#include "csrc/program/program.h"
#include "tests/cpp/ir/mutated.h"

namespace spmd::program {
namespace {

constexpr const char* kPrograms[] = {
    R"(mesh @m [data=2, model=4]
program {
  scalar $0: float
  %x: f32[32,128] @m {data},{model}
  %w: f32[256,128] @m {},{model} donated
  %b: f32[256] @m {}
  %0: f32[32,256] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model)
  %1: f32[32,256] @m {data},{} = all_reduce(%0) {model} at "train.py:3"
  free %0
  %2: f32[256,128] @m {},{model} = call aten::mul.Scalar(%w, other=$0) updates(0) task(4)
  %3: f32[32,256] @m {data},{model} = slice(%1) {model} dim(1)
  %4: f32[32,256] @m {},{model} = all_gather(%3) {data} dim(0)
  return %1, %2 -> %w, %4
}
)",
    R"(mesh @m [data=2]
mesh @r [x=2] devices=[1,0]
program {
  %x: f32[8,4,9] @m {},{},{data}
  %h: f32[8,4,9] @m {},{},{data} window(2: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 9) = exchange(%x) fill(-inf)
  %0: f32[8,4,9] @r {x},{},{} = exchange(%x)
  %1: f32[8,4,9] @m {data},{},{} = all_to_all(%x) {data} dim(2) to(0)
  %2: f32[8,4,9] @m {data chunk=5},{},{} = call aten::view(%1, size=[size(r0,0),4,max(9,coord(0))])
  return %0, %2
}
)",
};

TEST(ProgramFuzz, MutatedTextNeverCrashesAndWhatIsReadPrintsTheSame) {
  std::mt19937 random(6);
  int read = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string text = ir::Mutated(kPrograms[i % 2], random);
    const auto program = Program::Parse(text);
    if (!program.ok()) {
      ASSERT_TRUE(absl::StartsWith(program.status().message(), "line ")) << program.status() << "\n"
                                                                         << text;
      continue;
    }
    if (!Verify(*program).ok()) continue;
    ++read;
    const auto again = Program::Parse(program->ToString());
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    ASSERT_EQ(again->ToString(), program->ToString());
    ASSERT_TRUE(again->ComputeFingerprint() == program->ComputeFingerprint()) << text;
  }
  EXPECT_GT(read, 50);
}

}  // namespace
}  // namespace spmd::program
