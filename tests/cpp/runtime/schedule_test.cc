// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spmd::runtime {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kWork = 1000;  // bytes of an item that is not negligible

// "2: 0 1" for a batch of step 2 with items 0 and 1; "3+1..3: 0" where partial sums 1 and 2 are
// added.
std::vector<std::string> Texts(const Schedule& schedule) {
  std::vector<std::string> texts;
  for (const Batch& batch : schedule.batches) {
    std::string text = absl::StrCat(batch.step);
    const WorkItem& first = batch.items[0];
    if (first.end_term > 0) absl::StrAppend(&text, "+", first.begin_term, "..", first.end_term);
    absl::StrAppend(&text, ":");
    for (const WorkItem& item : batch.items) absl::StrAppend(&text, " ", item.index);
    texts.push_back(text);
  }
  return texts;
}

// The items of a call with a tile for each device, each reading its own tile of `reads`.
void AddCutCall(Scheduler& scheduler, int step, int devices, std::vector<int> reads, int made,
                int64_t bytes = kWork) {
  for (int d = 0; d < devices; ++d) {
    std::vector<TileRef> tiles;
    for (int v : reads) tiles.push_back({v, d});
    const TileRef result{made, d};
    WorkItem item;
    item.index = d;
    scheduler.AddCall(step, item, tiles, {&result, 1}, {d, d}, bytes);
  }
}
// One item that all devices want.
void AddSharedCall(Scheduler& scheduler, int step, int devices, std::vector<TileRef> reads,
                   int made) {
  const TileRef result{made, 0};
  scheduler.AddCall(step, {}, reads, {&result, 1}, {0, devices - 1}, kWork);
}
void AddAllReduce(Scheduler& scheduler, int step, int devices, int from, int to,
                  bool as_produced = true) {
  std::vector<Scheduler::Term> terms;
  for (int d = 0; d < devices; ++d) terms.push_back({{{from, d}}});
  scheduler.AddSum(step, {}, terms, {to, 0}, as_produced);
}
// The sum of calls of `call`, each of a device's own tile of `reads`.
void AddSumOfCalls(Scheduler& scheduler, int step, int call, int devices, int reads, int to,
                   int64_t bytes = kWork) {
  std::vector<Scheduler::Term> terms;
  for (int d = 0; d < devices; ++d) {
    terms.push_back({{{reads, d}}, Scheduler::Work{{d, d}, bytes, call}});
  }
  scheduler.AddSum(step, {}, terms, {to, 0}, /*as_produced=*/true);
}

TEST(Schedule, WavesTakeTurnsAndTermsAreAddedAsTheyAreProduced) {
  // The example of the header: %0 = inputs, %1 = f(%0), %2 = g(%1), %3 = sum, %4 = h(%3).
  Scheduler scheduler({{4, 4, 4, 1, 1}}, {{1, 0, 0, 0, 1}}, 2, 0);
  AddCutCall(scheduler, 0, 4, {0}, 1);
  AddCutCall(scheduler, 1, 4, {1}, 2);
  AddAllReduce(scheduler, 2, 4, 2, 3);
  AddSharedCall(scheduler, 3, 4, {{3, 0}}, 4);
  const Schedule schedule = std::move(scheduler).Finish();
  EXPECT_THAT(Texts(schedule), ElementsAre("0: 0 1", "1: 0 1", "2+0..2: 0", "0: 2 3", "1: 2 3",
                                           "2+2..4: 0", "3: 0"));
  // The first wave's tiles are dead before the second begins.
  EXPECT_EQ(schedule.batches[1].dead.size(), 2u);
  EXPECT_EQ(schedule.batches[2].dead.size(), 2u);
  EXPECT_TRUE(schedule.batches[2].items[0].may_take_first());
  EXPECT_EQ(schedule.batches[6].dead.size(), 1u);
}

TEST(Schedule, TermsThatTheSumComputesAreComputedInTheirDevicesTurns) {
  // %1 = f(%0), %2 = the sum of g(%1), %3 = h(%1), a merged collective behind all of them.
  Scheduler scheduler({{4, 4, 1, 4}}, {{1, 0, 1, 1}}, 2, 0);
  AddCutCall(scheduler, 0, 4, {0}, 1);
  AddCutCall(scheduler, 2, 4, {1}, 3);
  AddSumOfCalls(scheduler, /*step=*/9, /*call=*/1, 4, 1, 2);
  const Schedule schedule = std::move(scheduler).Finish();
  EXPECT_THAT(Texts(schedule),
              ElementsAre("0: 0 1", "9+0..2: 0", "2: 0 1", "0: 2 3", "9+2..4: 0", "2: 2 3"));
  // The activations of a wave are dead when its products and what else reads them are made.
  EXPECT_EQ(schedule.batches[1].dead.size(), 0u);
  EXPECT_EQ(schedule.batches[2].dead.size(), 2u);
}

TEST(Schedule, TermsOfInputsAloneAreComputedInTheirDevicesTurnsIfTheyCostAnything) {
  for (const int64_t bytes : {kWork, int64_t{1}}) {
    Scheduler scheduler({{4, 1}}, {{1, 1}}, 2, /*negligible=*/10);
    AddSumOfCalls(scheduler, 1, 0, 4, 0, 1, bytes);
    const std::vector<std::string> texts = Texts(std::move(scheduler).Finish());
    if (bytes == kWork) {
      EXPECT_THAT(texts, ElementsAre("1+0..2: 0", "1+2..4: 0"));
    } else {
      EXPECT_THAT(texts, ElementsAre("1+0..4: 0"));
    }
  }
}

TEST(Schedule, HalfTypesAreAddedAtOnce) {
  Scheduler scheduler({{4, 4, 1}}, {{1, 0, 1}}, 2, 0);
  AddCutCall(scheduler, 0, 4, {0}, 1);
  AddAllReduce(scheduler, 1, 4, 1, 2, /*as_produced=*/false);
  EXPECT_THAT(Texts(std::move(scheduler).Finish()), ElementsAre("0: 0 1", "0: 2 3", "1+0..4: 0"));
}

TEST(Schedule, WhatNeedsALaterWaveWaitsForTheNextLevel) {
  // A sharded call on a sum of a sharded call: two levels. Calls of the first whose inputs are
  // there come with it, wherever the program has them; the last wave need not wait.
  Scheduler scheduler({{4, 4, 1, 4, 4}}, {{1, 0, 0, 1, 1}}, 2, 0);
  AddCutCall(scheduler, 0, 4, {0}, 1);
  AddAllReduce(scheduler, 1, 4, 1, 2);
  for (int d = 0; d < 4; ++d) {
    const TileRef result{3, d};
    const std::vector<TileRef> reads = {{2, 0}};
    WorkItem item;
    item.index = d;
    scheduler.AddCall(2, item, reads, {&result, 1}, {d, d}, kWork);
  }
  AddCutCall(scheduler, 3, 4, {0}, 4);
  EXPECT_THAT(Texts(std::move(scheduler).Finish()),
              ElementsAre("0: 0 1", "1+0..2: 0", "3: 0 1", "0: 2 3", "1+2..4: 0", "2: 2 3",
                          "3: 2 3", "2: 0 1"));
}

TEST(Schedule, WhatCostsNextToNothingDoesNotWaitForItsWave) {
  // The number of targets is known at once, so forward and backward pass stay in one turn.
  // %0 targets, %1 counts, %2 their sum, %3 activations, %4 gradients.
  for (const int64_t negligible : {0, 10}) {
    Scheduler scheduler({{4, 4, 1, 4, 4}}, {{1, 0, 0, 0, 1}}, 2, negligible);
    AddCutCall(scheduler, 0, 4, {0}, 3);
    AddCutCall(scheduler, 1, 4, {0}, 1, /*bytes=*/2);
    AddAllReduce(scheduler, 2, 4, 1, 2);
    for (int d = 0; d < 4; ++d) {
      const TileRef result{4, d};
      const std::vector<TileRef> reads = {{3, d}, {2, 0}};
      WorkItem item;
      item.index = d;
      scheduler.AddCall(3, item, reads, {&result, 1}, {d, d}, kWork);
    }
    const std::vector<std::string> texts = Texts(std::move(scheduler).Finish());
    if (negligible == 0) {
      // (The first wave's activations, from inputs alone, wait for their use.)
      EXPECT_THAT(texts, ElementsAre("1: 0 1", "2+0..2: 0", "0: 2 3", "1: 2 3", "2+2..4: 0",
                                     "3: 2 3", "0: 0 1", "3: 0 1"));
    } else {
      EXPECT_THAT(texts,
                  ElementsAre("0: 0 1", "1: 0 1 2 3", "2+0..4: 0", "3: 0 1", "0: 2 3", "3: 2 3"));
    }
  }
}

TEST(Schedule, WhatNeedsInputsOnlyWaitsForItsFirstUse) {
  // %1, computed from the input %5 alone and needed by all, is used after the sum: as an
  // optimizer's state that decays.
  Scheduler scheduler({{4, 1, 4, 1, 1, 1}}, {{1, 0, 0, 0, 1, 0}}, 2, 0);
  AddSharedCall(scheduler, 0, 4, {{5, 0}}, 1);
  AddCutCall(scheduler, 1, 4, {0}, 2);
  AddAllReduce(scheduler, 2, 4, 2, 3);
  AddSharedCall(scheduler, 3, 4, {{3, 0}, {1, 0}}, 4);
  const Schedule schedule = std::move(scheduler).Finish();
  EXPECT_THAT(Texts(schedule),
              ElementsAre("1: 0 1", "2+0..2: 0", "0: 0", "1: 2 3", "2+2..4: 0", "3: 0"));
  EXPECT_TRUE(schedule.batches[2].items[0].may_take_first());
}

TEST(Schedule, SaysOfEachReadWhetherItIsTheLast) {
  // %4 reads %0 and %2, which die, %1, which is read once more, and %3, which outlives it.
  Scheduler scheduler({{1, 1, 1, 1, 1, 1}}, {{0, 0, 0, 1, 1, 1}}, 2, 0);
  AddSharedCall(scheduler, 0, 1, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}, 4);
  AddSharedCall(scheduler, 1, 1, {{1, 0}}, 5);
  const Schedule schedule = std::move(scheduler).Finish();
  EXPECT_EQ(schedule.batches[0].items[0].may_take, 0b0101);
  EXPECT_EQ(schedule.batches[1].items[0].may_take, 0b0001);
}

TEST(Schedule, ATileWithTwoReadersAtOnceIsNotTaken) {
  Scheduler scheduler({{1, 2, 1}}, {{0, 0, 1}}, 2, 0);
  for (int d = 0; d < 2; ++d) {
    const TileRef result{1, d}, read{0, 0};
    WorkItem item;
    item.index = d;
    scheduler.AddCall(0, item, {&read, 1}, {&result, 1}, {d, d}, kWork);
  }
  AddAllReduce(scheduler, 1, 2, 1, 2);
  const Schedule schedule = std::move(scheduler).Finish();
  EXPECT_FALSE(schedule.batches[0].items[0].may_take_first());
  EXPECT_FALSE(schedule.batches[0].items[1].may_take_first());
  EXPECT_EQ(schedule.batches[0].dead.size(), 1u);
}

// Random programs: everything is computed once and after what it reads, terms in order; a tile dies
// once, with the last batch that touches it.
TEST(Schedule, IsATopologicalOrderInWhichTilesDieAfterTheirLastUse) {
  std::mt19937 random(0);
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    const int devices = 1 + draw(8), inputs = 1 + draw(3), steps = 1 + draw(12);
    std::vector<int64_t> tiles;
    std::vector<uint8_t> outlives;
    for (int v = 0; v < inputs + steps; ++v) {
      tiles.push_back(draw(2) ? devices : 1);
      outlives.push_back(draw(4) == 0);
    }
    Scheduler scheduler(tiles, outlives, 1 + draw(devices), draw(3) * kWork);
    std::map<std::pair<int, int>, std::vector<std::vector<TileRef>>> wanted;  // by step, item
    const auto own = [&](int v, int d) { return TileRef{v, tiles[v] == 1 ? 0 : d}; };
    for (int s = 0; s < steps; ++s) {
      const int made = inputs + s, a = draw(made), b = draw(made);
      if (tiles[made] == 1 && tiles[a] > 1) {
        const bool computed = draw(3) == 0;
        std::vector<Scheduler::Term> terms;
        for (int d = 0; d < devices; ++d) {
          Scheduler::Term& term = terms.emplace_back();
          term.reads = {{a, d}};
          if (computed) {
            term.reads.push_back(own(b, d));
            term.work = Scheduler::Work{{d, d}, kWork, s};
          }
          wanted[{s, 0}].push_back(term.reads);
        }
        scheduler.AddSum(s, {}, terms, {made, 0}, computed || draw(2) == 0);
        continue;
      }
      for (int d = 0; d < tiles[made]; ++d) {
        const int from = tiles[made] == 1 ? 0 : draw(devices);  // another device's, at times
        const std::vector<TileRef> reads = {own(a, d), own(b, draw(3) ? d : from)};
        const TileRef result{made, d};
        WorkItem item;
        item.index = d;
        if (draw(4) == 0) {
          scheduler.AddMove(s, item, reads, result);
        } else {
          scheduler.AddCall(s, item, reads, {&result, 1}, {d, tiles[made] == 1 ? devices - 1 : d},
                            kWork);
        }
        wanted[{s, d}] = {reads};
      }
    }
    const Schedule schedule = std::move(scheduler).Finish();
    std::set<std::pair<int, int>> there, dead;
    std::map<std::pair<int, int>, size_t> last;
    std::map<std::pair<int, int>, int> terms_done;
    for (int v = 0; v < inputs; ++v) {
      for (int d = 0; d < tiles[v]; ++d) there.insert({v, d});
    }
    for (size_t n = 0; n < schedule.batches.size(); ++n) {
      const Batch& batch = schedule.batches[n];
      for (const WorkItem& item : batch.items) {
        const auto& terms = wanted.at({batch.step, item.index});
        const int begin = item.end_term > 0 ? item.begin_term : 0;
        const int end = item.end_term > 0 ? item.end_term : 1;
        ASSERT_EQ(begin, (terms_done[{batch.step, item.index}])) << "round " << round;
        terms_done[{batch.step, item.index}] = end;
        for (int k = begin; k < end; ++k) {
          for (const TileRef& tile : terms[k]) {
            ASSERT_TRUE(there.count({tile.value, tile.index})) << "round " << round;
            ASSERT_FALSE(dead.count({tile.value, tile.index})) << "round " << round;
            last[{tile.value, tile.index}] = n;
          }
        }
      }
      for (const WorkItem& item : batch.items) {
        const std::pair<int, int> made{inputs + batch.step, item.index};
        const auto& terms = wanted.at({batch.step, item.index});
        last[made] = n;
        if (item.end_term == 0 || item.end_term == static_cast<int>(terms.size())) {
          there.insert(made);
        }
      }
      for (const TileRef& tile : batch.dead) {
        ASSERT_TRUE(dead.insert({tile.value, tile.index}).second) << "round " << round;
        ASSERT_FALSE(outlives[tile.value]);
      }
    }
    for (const auto& [key, terms] : wanted) {
      const int end = terms_done[key];
      ASSERT_TRUE(end == static_cast<int>(terms.size()) || (terms.size() == 1 && end == 1));
    }
    for (const auto& [tile, n] : last) {
      ASSERT_EQ(dead.count(tile), outlives[tile.first] ? 0u : 1u) << "round " << round;
      if (outlives[tile.first]) continue;
      bool found = false;
      for (const TileRef& t : schedule.batches[n].dead) {
        found = found || (t.value == tile.first && t.index == tile.second);
      }
      ASSERT_TRUE(found) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace spmd::runtime
