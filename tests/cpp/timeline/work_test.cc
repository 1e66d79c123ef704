// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cpp/timeline/ring_system.h"

namespace spmd::timeline {
namespace {

// The work of the call `line`, whose operands are %x: f32[256,1000] {x},{} and %w: f32[1000,512].
Work WorkOfLine(const std::string& line) {
  const auto program = program::Program::Parse(
      absl::StrCat("mesh @m [x=4]\nprogram {\n %x: f32[256,1000] @m {x},{}\n"
                   " %w: f32[1000,512] @m {},{}\n ",
                   line, "\n return %0\n}\n"));
  EXPECT_TRUE(program.ok()) << program.status();
  return WorkOf(*program, program->instructions[0], RingSystem().device);
}

TEST(WorkTest, AProductIsTwiceItsPointsOnEachDevice) {
  const Work work = WorkOfLine("%0: f32[256,512] @m {x},{} = call aten::mm(%x, %w)");
  EXPECT_EQ(work.kind, CallKind::kProduct);
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * 64 * 1000 * 512);
  EXPECT_EQ(work.shares, 4);
}

TEST(WorkTest, KindsOfCalls) {
  const auto kind = [](const char* line) { return WorkOfLine(line).kind; };
  EXPECT_EQ(kind("%0: f32[256,1000] @m {x},{} = call aten::add.Tensor(%x, %x, alpha=1)"),
            CallKind::kPointwise);
  EXPECT_EQ(kind("%0: f32[256] @m {x} = call aten::sum.dim_IntList(%x, dim=[1], keepdim=false, "
                 "dtype=none)"),
            CallKind::kReduction);
  EXPECT_EQ(kind("%0: f32[256,1000] @m {x},{} = call aten::_softmax(%x, dim=1, "
                 "half_to_float=false)"),
            CallKind::kNormalisation);
  EXPECT_EQ(kind("%0: f32[1000,256] @m {},{x} = call aten::permute(%x, dims=[1,0])"),
            CallKind::kView);
  EXPECT_EQ(kind("%0: f32[8] @m {} = call spmd::full(size=[8], value=0, dtype=f32)"),
            CallKind::kCreation);
  EXPECT_EQ(kind("%0: f32[8] @m {} = call mylib::unknown(%x)"), CallKind::kOther);
}

TEST(WorkTest, PaddingToTheMatrixUnitTakesTime) {
  machine::System system = RingSystem();
  system.device.tile_rows = 8;
  system.device.tile_columns = 128;
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[1000,1000] @m {},{}\n"
         "  %0: f32[1000,1000] @m {},{} = call aten::mm(%a, %a)\n  return %0\n}\n",
         system);
  EXPECT_DOUBLE_EQ(t.entries[0].flops, 2e9);
  EXPECT_DOUBLE_EQ(t.entries[0].seconds, 2.0 * 1000 * 1024 * 1024 / 0.5e12);
}

// A convolution of stride 2 and its two gradients are as many multiplications. Channels, and not
// the 3 × 3 positions of the kernel, are padded.
TEST(WorkTest, ConvolutionsArePaddedInTheirChannels) {
  machine::System system = RingSystem();
  system.device.tile_rows = 8;
  system.device.tile_columns = 128;
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %x: f32[4,64,32,32] @m {},{},{},{}\n"
         "  %w: f32[96,64,3,3] @m {},{},{},{}\n"
         "  %0: f32[4,96,16,16] @m {},{},{},{} = call aten::convolution(%x, %w, _, stride=[2,2], "
         "padding=[1,1], dilation=[1,1], transposed=false, output_padding=[0,0], groups=1)\n"
         "  %1: f32[4,64,32,32] @m {},{},{},{} = call spmd::conv_dinput(%0, %w, "
         "input_size=[4,64,32,32], stride=[2,2], padding=[1,1], dilation=[1,1], groups=1, "
         "crop_start=[0,0])\n"
         "  %2: f32[96,64,3,3] @m {},{},{},{} = call spmd::conv_dweight(%0, %x, "
         "weight_size=[96,64,3,3], stride=[2,2], padding=[1,1], dilation=[1,1], groups=1)\n"
         "  return %1, %2\n}\n",
         system);
  ASSERT_EQ(t.entries.size(), 3u);
  const double positions = 4 * 16 * 16, kernel = 3 * 3;
  for (const Entry& entry : t.entries) {
    EXPECT_DOUBLE_EQ(entry.flops, 2 * positions * kernel * 64 * 96);
  }
  EXPECT_DOUBLE_EQ(t.entries[0].seconds, 2 * positions * kernel * 128 * 128 / 0.5e12);
  EXPECT_DOUBLE_EQ(t.entries[1].seconds, 2 * positions * kernel * 128 * 128 / 0.5e12);
  // Sums over positions, 96 rows.
  EXPECT_DOUBLE_EQ(t.entries[2].seconds, 2 * positions * kernel * 128 * 96 / 0.5e12);
}

}  // namespace
}  // namespace spmd::timeline
