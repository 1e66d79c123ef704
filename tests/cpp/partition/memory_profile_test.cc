// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/memory_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "csrc/partition/compile.h"
#include "csrc/program/analysis.h"
#include "tests/cpp/partition/random_model.h"

namespace spmd::partition {
namespace {

TEST(MemoryProfile, LivesEndWithTheLastUseOrTheProgram) {
  const program::Program p = *program::Program::Parse(R"(mesh @m [x=2]
program {
  %kept: f32[4] @m {}
  %given: f32[4] @m {}
  %0: f32[4] @m {} = call aten::exp(%given)
  %1: f32[4] @m {} = call aten::exp(%0)
  %2: f32[4] @m {} = call aten::add.Tensor(%1, %kept, alpha=1)
  return %2 -> %given
})");
  std::vector<std::pair<int, int>> lives;
  for (const Life& life : LivesOf(p)) lives.emplace_back(life.first, life.last);
  EXPECT_THAT(lives,
              testing::ElementsAre(testing::Pair(0, 3), testing::Pair(0, 0), testing::Pair(0, 1),
                                   testing::Pair(1, 2), testing::Pair(2, 3)));
  const MemoryProfile profile(p);
  EXPECT_EQ(profile.peak(), 3 * 16);      // kept, given, %0
  EXPECT_EQ(profile.Most(1, 1), 3 * 16);  // kept, %0, %1
}

TEST(MemoryProfile, AgreesWithAddingUpWhatIsHeld) {
  std::mt19937 random(21);
  for (int i = 0; i < 20; ++i) {
    const auto text = TextAfter(RandomModel(random), "localise");
    ASSERT_TRUE(text.ok()) << text.status();
    const program::Program p = *program::Program::Parse(*text);
    const MemoryProfile profile(p);
    const std::vector<Life> lives = LivesOf(p);
    const std::vector<int64_t> bytes = program::HeldBytes(p);
    const int n = static_cast<int>(p.instructions.size());
    std::vector<int64_t> held(n + 1, 0);
    for (size_t v = 0; v < lives.size(); ++v) {
      for (int at = lives[v].first; at <= lives[v].last; ++at) held[at] += bytes[v];
    }
    EXPECT_EQ(profile.peak(), *std::max_element(held.begin(), held.end()));
    for (int k = 0; k < 50 && n > 0; ++k) {
      const int a = static_cast<int>(random() % n), b = static_cast<int>(random() % n);
      const int first = std::min(a, b), last = std::max(a, b);
      EXPECT_EQ(profile.Most(first, last),
                *std::max_element(held.begin() + first, held.begin() + last + 1));
    }
  }
}

}  // namespace
}  // namespace spmd::partition
