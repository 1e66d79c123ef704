// SPDX-License-Identifier: Apache-2.0
// The device as a whole, called from C++: steps that come again are replayed.
#include "csrc/trace/recorder/replay.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/trace/api/register_device.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/device_type.h"

namespace spmd::trace {
namespace {

class ReplayTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { RegisterDevice(); }

  // w = max(w + factor · x, 0)[begin:begin + 4], in eight elements that are written in place. All
  // ops have a Meta kernel in C++, since this test has no Python.
  static at::Tensor Step(double factor, int64_t begin, int64_t rows = 8) {
    const c10::NoGradGuard no_grad;
    const at::Tensor w = at::ones({rows}).to(TheDevice());
    const at::Tensor x = at::arange(rows, at::kFloat).to(TheDevice());
    w.add_(x, factor).clamp_min_(0);
    return w.slice(0, begin, begin + 4).cpu();
  }

  static at::Tensor Expected(double factor, int64_t begin, int64_t rows = 8) {
    return at::ones({rows})
        .add(at::arange(rows, at::kFloat), factor)
        .clamp_min(0)
        .slice(0, begin, begin + 4);
  }

  static Statistics During(double factor, int64_t begin, int64_t rows = 8) {
    const Statistics before = Session::Get().statistics();
    EXPECT_TRUE(Step(factor, begin, rows).equal(Expected(factor, begin, rows)));
    const Statistics after = Session::Get().statistics();
    Statistics difference;
    difference.records = after.records - before.records;
    difference.replayed = after.replayed - before.replayed;
    difference.compiles = after.compiles - before.compiles;
    return difference;
  }

  static void SetReplay(bool on) {
    Options options = Session::Get().options();
    options.replay = on;
    Session::Get().SetOptions(options);
  }
};

TEST_F(ReplayTest, AStepThatComesAgainIsReplayed) {
  EXPECT_EQ(During(2, 0).compiles, 1);
  for (int i = 0; i < 3; ++i) During(2, 0);
  const Statistics again = During(2, 0);
  EXPECT_EQ(again.compiles, 0);
  EXPECT_GT(again.replayed, 0);
}

TEST_F(ReplayTest, WithOtherNumbersItIsReplayedAndComputesWithThese) {
  for (int i = 0; i < 3; ++i) During(3, 0);
  const Statistics other = During(-0.5, 0);
  EXPECT_EQ(other.compiles, 0);
  EXPECT_GT(other.replayed, 0);
}

TEST_F(ReplayTest, WithOtherShapesItIsRecordedAnew) {
  for (int i = 0; i < 3; ++i) During(2, 0);
  EXPECT_EQ(During(2, 0, 12).compiles, 1);
}

TEST_F(ReplayTest, WithoutTheOptionNothingIsReplayed) {
  SetReplay(false);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(During(2, 4).replayed, 0);
  SetReplay(true);
}

}  // namespace
}  // namespace spmd::trace
