// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/timeline/ring_system.h"

namespace spmd::timeline {
namespace {

TEST(FusionTest, PointwiseCallsAreFusedAndTakeTheirBytes) {
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

TEST(FusionTest, AReductionIsCompleteBeforeItsReadersStart) {
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

TEST(FusionTest, AProductWritesWhatItsOnlyReaderFinishes) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[64,64] @m {},{}\n"
         "  %0: f32[64,64] @m {},{} = call aten::mm(%a, %a)\n"
         "  %1: f32[64,64] @m {},{} = call aten::relu(%0)\n  return %1\n}\n");
  EXPECT_THAT(t.entries[0].bytes, 2 * 64 * 64 * 4 / 2);  // %a is read once
  EXPECT_THAT(t.entries[1].bytes, 64 * 64 * 4);
}

TEST(FusionTest, AViewIsFree) {
  const Timeline t =
      Of("mesh @m [x=4]\nprogram {\n  %a: f32[4,1024] @m {},{}\n"
         "  %0: f32[1024,4] @m {},{} = call aten::permute(%a, dims=[1,0])\n"
         "  %1: f32[1024,4] @m {},{} = call aten::exp(%0)\n  return %1\n}\n");
  EXPECT_EQ(t.entries[0].seconds, 0);
  EXPECT_THAT(t.entries[1].bytes, 2 * 4 * 4096);
}

}  // namespace
}  // namespace spmd::timeline
