// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/memory_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "csrc/program/analysis.h"

namespace spmd::program {
namespace {

using ::testing::ElementsAre;

// A step of one sharded weight: gathered, used, its gradient reduce-scattered and applied.
constexpr char kStepInMemory[] = R"(mesh @m [x=4]
program {
  %x: f32[8,4] @m {x},{}
  %w: f32[4,4] @m {x},{} donated
  %0: f32[4,4] @m {},{} = all_gather(%w) {x} dim(0)
  %1: f32[8,4] @m {x},{} = call f(%x, %0)
  free %0
  %2: f32[4,4] @m {},{} unreduced(sum){x} = call g(%x, %1) task(1)
  free %1
  %3: f32[4,4] @m {x},{} = reduce_scatter(%2) {x} dim(0)
  free %2
  %4: f32[4,4] @m {x},{} = call h(%w, %3) updates(0)
  free %3
  return %4 -> %w
}
)";

int64_t Of(const MemoryUse::Bytes& bytes, HeldFor what) { return bytes[static_cast<int>(what)]; }

TEST(MemoryUseTest, EachValueIsHeldForOnePurpose) {
  const auto program = Program::Parse(kStepInMemory);
  ASSERT_TRUE(program.ok()) << program.status();
  const MemoryUse use = UseOfMemory(*program);
  constexpr int64_t kBatch = 32, kWeight = 16, kWhole = 64, kActivation = 32;
  std::vector<std::vector<int64_t>> after;
  for (const MemoryUse::Bytes& bytes : use.after) after.emplace_back(bytes.begin(), bytes.end());
  // By purpose: arguments, gradients, gathered weights, activations.
  EXPECT_THAT(after, ElementsAre(ElementsAre(kBatch + kWeight, 0, kWhole, 0),
                                 ElementsAre(kBatch + kWeight, 0, kWhole, kActivation),
                                 ElementsAre(kBatch + kWeight, kWhole, 0, kActivation),
                                 ElementsAre(kBatch + kWeight, kWhole + kWeight, 0, 0),
                                 ElementsAre(kBatch + kWeight, kWeight, 0, 0)));
  EXPECT_EQ(use.peak_bytes(), PeakMemory(*program).peak_bytes);
  EXPECT_EQ(Of(use.at_peak, HeldFor::kArgument), kBatch + kWeight);
  EXPECT_EQ(use.live.front().bytes, kWhole);
  EXPECT_EQ(std::count_if(use.live.begin(), use.live.end(),
                          [](const MemoryUse::Held& held) { return held.maker == -1; }),
            2);
}

TEST(MemoryUseTest, AProgramWithoutInstructions) {
  const auto program = Program::Parse(
      "mesh @m [x=4]\nprogram {\n  %x: f32[8] @m {x}\n"
      "  return %x\n}\n");
  ASSERT_TRUE(program.ok()) << program.status();
  const MemoryUse use = UseOfMemory(*program);
  EXPECT_EQ(use.peak_bytes(), 8);
  EXPECT_TRUE(use.after.empty());
}

}  // namespace
}  // namespace spmd::program
