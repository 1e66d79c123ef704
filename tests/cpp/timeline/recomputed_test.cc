// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/recomputed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace spmd::timeline {
namespace {

using ::testing::ElementsAre;

std::vector<bool> RecomputedIn(const std::string& body) {
  const auto program = program::Program::Parse(
      "mesh @m [x=4]\nprogram {\n %a: f32[8,8] @m {x},{}\n %b: f32[8,8] @m {},{}\n" + body + "}\n");
  EXPECT_TRUE(program.ok()) << program.status();
  return Recomputed(*program);
}

TEST(Recomputed, ACallOfEqualValuesIsComputedAgain) {
  EXPECT_THAT(RecomputedIn(" %0: f32[8,8] @m {x},{} = call aten::exp(%a)\n"
                           " %1: f32[8,8] @m {x},{} = call aten::exp(%a) task(2)\n"
                           " %2: f32[8,8] @m {x},{} = call aten::relu(%0)\n"
                           " %3: f32[8,8] @m {x},{} = call aten::relu(%1)\n"
                           " %4: f32[8,8] @m {},{} = call aten::exp(%b)\n return %2, %3, %4\n"),
              ElementsAre(false, true, false, true, false));
}

TEST(Recomputed, AMoveDoesNotChangeAValue) {
  EXPECT_THAT(RecomputedIn(" %0: f32[8,8] @m {},{} = all_gather(%a) {x} dim(0)\n"
                           " %1: f32[8,8] @m {},{} = call aten::exp(%0)\n"
                           " %2: f32[8,8] @m {x},{} = call aten::exp(%a)\n return %1, %2\n"),
              ElementsAre(false, false, true));
}

TEST(Recomputed, OtherAttributesAndRandomNumbersAreNew) {
  EXPECT_THAT(RecomputedIn(" %0: f32[8] @m {x} = call aten::amax(%a, dim=[1], keepdim=false)\n"
                           " %1: f32[8] @m {} = call aten::amax(%a, dim=[0], keepdim=false)\n"
                           " %2: f32[8,8] @m {x},{}, %3: bool[8,8] @m {x},{} = call "
                           "spmd::dropout(%a, p=0.5, seed=1, "
                           "counter=2, offset=[0,0], global_size=[8,8])\n"
                           " %4: f32[8,8] @m {x},{}, %5: bool[8,8] @m {x},{} = call "
                           "spmd::dropout(%a, p=0.5, seed=1, "
                           "counter=2, offset=[0,0], global_size=[8,8])\n return %0, %1, %2, %4\n"),
              ElementsAre(false, false, false, false));
}

}  // namespace
}  // namespace spmd::timeline
