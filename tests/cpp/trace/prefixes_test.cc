// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/prefixes.h"

#include <gtest/gtest.h>

#include "tests/cpp/trace/tapes.h"

namespace spmd::trace {
namespace {

// relu(x) of a vector of `size` elements.
void RecordOneRelu(Tape& tape, int64_t size) {
  Relu(tape, tape.Use(NewValue(FloatType({size})), nullptr));
}

TEST(PrefixesTest, ATapeFindsTheRecordingThatBeginsLikeIt) {
  Tape first;
  RecordOneRelu(first, 4);
  Relu(first, 1);
  const RecordingPtr recording = first.Share();
  Prefixes prefixes;
  prefixes.Add(recording);
  Tape second;
  RecordOneRelu(second, 4);
  EXPECT_EQ(prefixes.Find(second.key(), second.recording()), recording);
  Tape other;
  RecordOneRelu(other, 5);
  EXPECT_EQ(prefixes.Find(other.key(), other.recording()), nullptr);
}

TEST(PrefixesTest, AKeyThatCollidesFindsNothing) {
  Prefixes prefixes;
  prefixes.SetKeyBits(0);
  Tape first;
  RecordOneRelu(first, 4);
  const RecordingPtr recording = first.Share();
  prefixes.Add(recording);
  Tape same, other, longer;
  RecordOneRelu(same, 4);
  RecordOneRelu(other, 5);
  RecordOneRelu(longer, 4);
  Relu(longer, 1);
  EXPECT_EQ(prefixes.Find(same.key(), same.recording()), recording);
  EXPECT_EQ(prefixes.Find(other.key(), other.recording()), nullptr);
  EXPECT_EQ(prefixes.Find(longer.key(), longer.recording()), nullptr);
}

TEST(PrefixesTest, ARecordingThatHasEndedIsNotFound) {
  Prefixes prefixes;
  {
    Tape first;
    RecordOneRelu(first, 4);
    prefixes.Add(first.Share());
  }
  Tape second;
  RecordOneRelu(second, 4);
  EXPECT_EQ(prefixes.Find(second.key(), second.recording()), nullptr);
}

}  // namespace
}  // namespace spmd::trace
