// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/micro_steps.h"

#include <gtest/gtest.h>

namespace spmd::trace {
namespace {

TEST(MicroStepsTest, APassThatAddsToNoGradientEndsInNoCut) {
  MicroSteps steps;
  steps.Note(/*task=*/-1, /*updates_first=*/true);  // of no backward pass
  steps.Note(/*task=*/7, /*updates_first=*/false);
  steps.Note(/*task=*/7, /*updates_first=*/true);  // no leaf is being filled
  EXPECT_EQ(steps.TakeEnding(), -1);
}

}  // namespace
}  // namespace spmd::trace
