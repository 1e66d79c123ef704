// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/program_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/cpp/trace/tapes.h"

namespace spmd::trace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Hash128 Key(uint64_t number) {
  Hash128 key;
  key.Mix(number);
  return key;
}

// A program that takes at least as many bytes.
CachedProgramPtr NewProgram(uint64_t key, size_t bytes = 1 << 20) {
  auto program = std::make_shared<CachedProgram>();
  program->key = Key(key);
  program->prefixes.reserve(bytes / sizeof(uint64_t));
  program->program = std::make_shared<CompiledProgram>();
  program->program->explained = false;
  return program;
}

TEST(ProgramCacheTest, ProgramsAreFoundByTheirKeysTheNewestFirst) {
  ProgramCache cache;
  const CachedProgramPtr a = NewProgram(1), b = NewProgram(2), c = NewProgram(1);
  for (const CachedProgramPtr& p : {a, b, c}) cache.Insert(p);
  EXPECT_THAT(cache.Find(Key(1)), ElementsAre(c, a));
  EXPECT_THAT(cache.Find(Key(2)), ElementsAre(b));
  EXPECT_THAT(cache.Find(Key(3)), IsEmpty());
}

TEST(ProgramCacheTest, ThoseUsedLeastRecentlyAreDroppedFirst) {
  ProgramCache cache;
  cache.SetMostBytes(3 << 20);
  const CachedProgramPtr a = NewProgram(1), b = NewProgram(2), c = NewProgram(3);
  cache.Insert(a);
  cache.Insert(b);
  EXPECT_THAT(cache.Find(Key(1)), ElementsAre(a));  // a is used again
  cache.Insert(c);
  EXPECT_THAT(cache.Find(Key(2)), IsEmpty());
  EXPECT_THAT(cache.recent(), ElementsAre(c, a));
  EXPECT_LE(cache.bytes(), 3 << 20);
}

TEST(ProgramCacheTest, TheLastProgramStaysHoweverLargeItIs) {
  ProgramCache cache;
  cache.SetMostBytes(1 << 20);
  cache.Insert(NewProgram(1));
  const CachedProgramPtr large = NewProgram(2, 8 << 20);
  cache.Insert(large);
  EXPECT_THAT(cache.recent(), ElementsAre(large));
}

TEST(ProgramCacheTest, AllButTheLastTwoExplainedProgramsLoseTheirReasons) {
  ProgramCache cache;
  std::vector<CachedProgramPtr> programs;
  for (uint64_t k = 0; k < 3; ++k) {
    programs.push_back(NewProgram(k));
    programs.back()->program->explained = true;
    cache.Insert(programs.back());
  }
  EXPECT_FALSE(programs[0]->program->explained);
  EXPECT_TRUE(programs[1]->program->explained);
  EXPECT_TRUE(programs[2]->program->explained);
}

TEST(ProgramCacheTest, WhereKeysCollideProgramsOfOtherTapesAreFoundToo) {
  ProgramCache cache;
  cache.SetKeyBits(0);
  const CachedProgramPtr a = NewProgram(1), b = NewProgram(2);
  cache.Insert(a);
  cache.Insert(b);
  EXPECT_THAT(cache.Find(Key(1)), ElementsAre(b, a));
}

// relu(x), or relu(x) + relu(x)
void RecordRelu(Tape& tape, bool twice, const Dims& sizes = {4}) {
  const TapeId r = Relu(tape, tape.Use(NewValue(FloatType(sizes)), nullptr));
  if (twice) Add(tape, r, r);
}

TEST(ProgramCacheTest, AFoundProgramIsComparedRecordByRecord) {
  Tape first, equal, longer, other_sizes;
  RecordRelu(first, false);
  RecordRelu(equal, false);
  RecordRelu(longer, true);
  RecordRelu(other_sizes, false, {6});
  CachedProgram program;
  program.recording = first.Share();
  EXPECT_TRUE(SameTape(program, first));
  EXPECT_TRUE(SameTape(program, equal));
  EXPECT_FALSE(SameTape(program, longer));
  EXPECT_FALSE(SameTape(program, other_sizes));
}

}  // namespace
}  // namespace spmd::trace
