// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/trace/tapes.h"

namespace spmd::trace {
namespace {

using testing::ElementsAre;

// What a tape is made of: x and y of these sizes; relu(x) + y, or y + relu(x); a slice.
struct Steps {
  Dims sizes = {4};
  bool swapped = false;
  double alpha = 2;
  int64_t start = 0;
};

void RecordSteps(Tape& tape, const Steps& steps) {
  const TapeId x = tape.Use(NewValue(FloatType(steps.sizes)), nullptr);
  const TapeId y = tape.Use(NewValue(FloatType(steps.sizes)), nullptr);
  const TapeId r = Relu(tape, x);
  const TapeId sum = steps.swapped ? Add(tape, y, r, steps.alpha) : Add(tape, r, y, steps.alpha);
  Slice(tape, sum, steps.start);
}

Hash128 KeyOf(const Steps& steps) {
  Tape tape;
  RecordSteps(tape, steps);
  return tape.key();
}

TEST(TapeTest, RecordsAreNumberedInOrder) {
  Tape tape;
  const ValuePtr x = NewValue(FloatType({4}));
  EXPECT_EQ(tape.Use(x, nullptr), 0);
  EXPECT_EQ(Relu(tape, 0), 1);
  EXPECT_EQ(tape.Use(x, nullptr), 0);  // it is known
  EXPECT_EQ(Add(tape, 1, 0), 2);
  EXPECT_EQ(tape.num_records(), 2);
  ASSERT_EQ(tape.inputs().size(), 1);
  EXPECT_EQ(tape.inputs()[0].id, 0);
  EXPECT_EQ(tape.origin(0).input, 0);
  EXPECT_EQ(tape.origin(2).record, 1);
  EXPECT_THAT(tape.records()[1].operands, ElementsAre(1, 0));
  EXPECT_TRUE(tape.value(2)->pending);
}

TEST(TapeTest, EqualTapesHaveEqualKeys) { EXPECT_EQ(KeyOf({}), KeyOf({})); }

TEST(TapeTest, TypesAndWiringAreInTheKey) {
  for (const Steps& other : {Steps{.sizes = {6}}, Steps{.sizes = {2, 2}}, Steps{.swapped = true}}) {
    EXPECT_FALSE(KeyOf({}) == KeyOf(other));
  }
}

TEST(TapeTest, NumbersThatArePassedAtRunTimeAreNotInTheKey) {
  EXPECT_EQ(KeyOf({.alpha = 2}), KeyOf({.alpha = 3}));
  // A factor of 1 allows a better program.
  EXPECT_FALSE(KeyOf({.alpha = 2}) == KeyOf({.alpha = 1}));
  Tape tape;
  RecordSteps(tape, {.alpha = 3});
  ASSERT_EQ(tape.scalars().size(), 1);
  EXPECT_EQ(tape.scalars()[0].toDouble(), 3);
}

TEST(TapeTest, StartsAreNotInTheKey) { EXPECT_EQ(KeyOf({.start = 0}), KeyOf({.start = 2})); }

class FollowTest : public testing::Test {
 protected:
  FollowTest() {
    RecordSteps(first_, {});
    recording_ = first_.Share();
  }

  Tape first_;
  RecordingPtr recording_;
};

TEST_F(FollowTest, AnEqualTapeFollowsToTheEndAndRecordsNothing) {
  Tape tape;
  tape.Follow(recording_, 0);
  EXPECT_FALSE(tape.AtEnd());
  RecordSteps(tape, {});
  EXPECT_TRUE(tape.following());
  EXPECT_TRUE(tape.AtEnd());
  EXPECT_EQ(&tape.recording(), recording_.get());
  EXPECT_EQ(tape.key(), KeyOf({}));
  EXPECT_EQ(tape.num_records(), 3);
}

TEST_F(FollowTest, NumbersAreThoseOfTheTapeThatFollows) {
  Tape tape;
  tape.Follow(recording_, 0);
  RecordSteps(tape, {.alpha = 5});
  EXPECT_TRUE(tape.following());
  ASSERT_EQ(tape.scalars().size(), 1);
  EXPECT_EQ(tape.scalars()[0].toDouble(), 5);
}

TEST_F(FollowTest, ATapeWithOtherStartsFollowsAndHasTheSameKey) {
  Tape tape;
  tape.Follow(recording_, 0);
  RecordSteps(tape, {.start = 2});
  EXPECT_TRUE(tape.AtEnd());
  EXPECT_EQ(tape.ArgumentsOf(2)[2].toInt(), 2);
  EXPECT_EQ(tape.key(), KeyOf({}));
  tape.StopFollowing();
  EXPECT_EQ(tape.key(), KeyOf({}));
  EXPECT_EQ(tape.records()[2].args[2].toInt(), 2);
}

TEST_F(FollowTest, AtTheFirstDifferenceATapeGoesOnByItself) {
  for (const Steps& other : {Steps{.sizes = {6}}, Steps{.swapped = true}, Steps{.alpha = 1}}) {
    Tape tape;
    tape.Follow(recording_, 0);
    RecordSteps(tape, other);
    EXPECT_FALSE(tape.following());
    EXPECT_EQ(tape.key(), KeyOf(other));
    EXPECT_EQ(tape.records().size(), 3);
  }
}

TEST_F(FollowTest, ATapeThatIsReadBeforeTheEndCopiesWhatItFollowed) {
  Tape tape;
  tape.Follow(recording_, 0);
  tape.Use(NewValue(FloatType({4})), nullptr);
  tape.Use(NewValue(FloatType({4})), nullptr);
  Relu(tape, 0);
  tape.StopFollowing();
  ASSERT_EQ(tape.records().size(), 1);
  EXPECT_EQ(tape.records()[0].op, &GetOp("aten::relu"));
  EXPECT_EQ(tape.key(), recording_->keys[2]);
}

}  // namespace
}  // namespace spmd::trace
