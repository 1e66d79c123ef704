// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace spmd::timeline {
namespace {

using ::testing::ElementsAre;

// Four devices on a ring: 1 TFLOP/s of which products reach half, 100 GB/s of memory, links of
// 5 GB/s.
machine::System RingSystem() {
  machine::Machine device;
  device.name = "test";
  device.flops = 1e12;
  device.memory_bandwidth = 1e11;
  device.link_bandwidth = 1e10;
  device.latency = 1e-6;
  machine::System system = machine::OneRing(device, 4);
  system.efficiency = 0.5;
  return system;
}

Timeline Of(absl::string_view text, const machine::System& system = RingSystem()) {
  auto program = program::Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(program::Verify(*program).ok()) << program::Verify(*program);
  auto timeline = Predict(*program, system);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *std::move(timeline);
}

std::vector<double> Starts(const Timeline& timeline) {
  std::vector<double> starts;
  for (const Entry& entry : timeline.entries) starts.push_back(entry.start);
  return starts;
}

constexpr double kProduct = 2.0 * 256 * 1024 * 1024 / 0.5e12;
constexpr double kGather = 3.0 / 4 * 1024 * 1024 * 4 / 1e10;
constexpr char kInputs[] = R"(
  %a: f32[1024,1024] @m {x},{}
  %b: f32[1024,1024] @m {},{}
  %w: f32[1024,1024] @m {x},{}
)";
constexpr char kFirst[] = "  %0: f32[1024,1024] @m {x},{} = call aten::mm(%a, %b)\n";
constexpr char kMove[] = "  %1: f32[1024,1024] @m {},{} = all_gather(%w) {x} dim(0)\n";
constexpr char kSecond[] = "  %2: f32[1024,1024] @m {x},{} = call aten::mm(%0, %1)\n";

TEST(TimelineTest, ACollectiveHidesBehindTheCallsAfterIt) {
  const Timeline t = Of(absl::StrCat("mesh @m [x=4]\nprogram {", kInputs, kMove, kFirst, kSecond,
                                     "  return %2\n}\n"));
  EXPECT_THAT(Starts(t), ElementsAre(0, 0, kProduct));
  EXPECT_DOUBLE_EQ(t.entries[0].seconds, kGather);
  EXPECT_EQ(t.streams[t.entries[0].stream], "ring");
  EXPECT_DOUBLE_EQ(t.seconds, 2 * kProduct);
  EXPECT_DOUBLE_EQ(t.exposed_seconds(), 0);
  EXPECT_THAT(t.placement, ElementsAre("x=4: ring 4 ring"));
}

TEST(TimelineTest, ACollectiveWaitsForTheCallsBeforeIt) {
  const Timeline t = Of(absl::StrCat("mesh @m [x=4]\nprogram {", kInputs, kFirst, kMove, kSecond,
                                     "  return %2\n}\n"));
  EXPECT_THAT(Starts(t), ElementsAre(0, kProduct, kProduct + kGather));
  EXPECT_DOUBLE_EQ(t.exposed_seconds(), kGather);
}

TEST(TimelineTest, UtilisationCountsTheModelsFlopsOnce) {
  const Timeline t = Of(absl::StrCat(
      "mesh @m [x=4]\nprogram {", kInputs, kFirst,
      "  %1: f32[1024,1024] @m {x},{} = call aten::mm(%a, %b) task(3)\n  return %0, %1\n}\n"));
  EXPECT_FALSE(t.entries[0].recomputed);
  EXPECT_TRUE(t.entries[1].recomputed);
  EXPECT_DOUBLE_EQ(t.model_flops, 2.0 * 1024 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(t.hardware_flops, 2 * t.model_flops);
  EXPECT_DOUBLE_EQ(t.hfu(), 0.5);
  EXPECT_DOUBLE_EQ(t.mfu(), 0.25);
}

TEST(TimelineTest, WhatAllDevicesComputeAlikeCountsOnceForTheModel) {
  const Timeline t =
      Of(absl::StrCat("mesh @m [x=4]\nprogram {", kInputs,
                      "  %0: f32[1024,1024] @m {},{} = call aten::mm(%b, %b)\n  return %0\n}\n"));
  EXPECT_DOUBLE_EQ(t.hardware_flops, 4 * t.model_flops);
}

TEST(TimelineTest, PaddingToTheMatrixUnitTakesTime) {
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
TEST(TimelineTest, ConvolutionsArePaddedInTheirChannels) {
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

TEST(TimelineTest, PointwiseCallsAreFusedAndTakeTheirBytes) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[4,1024] @m {x},{}\n  %b: f32[4,1024] @m {x},{}\n"
         "  %0: f32[4,1024] @m {x},{} = call aten::add.Tensor(%a, %b, alpha=1)\n"
         "  %1: f32[4,1024] @m {x},{} = call aten::exp(%0)\n"
         "  %2: f32[4,1024] @m {x},{} = call aten::mul.Tensor(%1, %a)\n  return %2\n}\n");
  EXPECT_THAT(t.entries[0].bytes, 2 * 4096);  // both operands
  EXPECT_THAT(t.entries[1].bytes, 0);
  EXPECT_THAT(t.entries[2].bytes, 4096);  // %a was read; %2 is written
  EXPECT_DOUBLE_EQ(t.seconds, 3 * 4096 / 1e11);
}

TEST(TimelineTest, AReductionIsCompleteBeforeItsReadersStart) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[4,1024] @m {x},{}\n"
         "  %0: f32[4,1024] @m {x},{} = call aten::exp(%a)\n"
         "  %1: f32[4,1] @m {x},{} = call aten::sum.dim_IntList(%0, dim=[1], keepdim=true, "
         "dtype=none)\n"
         "  %2: f32[4,1024] @m {x},{} = call aten::div.Tensor(%0, %1)\n  return %2\n}\n");
  EXPECT_THAT(t.entries[0].bytes, 2 * 4096);         // written for the division
  EXPECT_THAT(t.entries[1].bytes, 4);                // reads nothing from memory
  EXPECT_THAT(t.entries[2].bytes, 4096 + 4 + 4096);  // a kernel of its own
}

TEST(TimelineTest, AProductWritesWhatItsOnlyReaderFinishes) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[64,64] @m {},{}\n"
         "  %0: f32[64,64] @m {},{} = call aten::mm(%a, %a)\n"
         "  %1: f32[64,64] @m {},{} = call aten::relu(%0)\n  return %1\n}\n");
  EXPECT_THAT(t.entries[0].bytes, 2 * 64 * 64 * 4 / 2);  // %a is read once
  EXPECT_THAT(t.entries[1].bytes, 64 * 64 * 4);
}

TEST(TimelineTest, AViewIsFree) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[4,1024] @m {},{}\n"
         "  %0: f32[1024,4] @m {},{} = call aten::permute(%a, dims=[1,0])\n"
         "  %1: f32[1024,4] @m {},{} = call aten::exp(%0)\n  return %1\n}\n");
  EXPECT_EQ(t.entries[0].seconds, 0);
  EXPECT_THAT(t.entries[1].bytes, 2 * 4 * 4096);
}

TEST(TimelineTest, AMeshThatDoesNotFitIsAnError) {
  const auto program = program::Program::Parse(
      "mesh @m [x=3]\nprogram {\n  %a: f32[3] @m {x}\n"
      "  %0: f32[3] @m {x} = call aten::exp(%a)\n  return %0\n}\n");
  EXPECT_EQ(Predict(*program, RingSystem()).status().message(),
            "a mesh of 3 devices does not divide test, which has 4");
}

}  // namespace
}  // namespace spmd::timeline
