// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/cpp/timeline/ring_system.h"

namespace spmd::timeline {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace spmd::timeline
