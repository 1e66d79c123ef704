// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/repeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpp/trace/tapes.h"

namespace spmd::trace {
namespace {

constexpr int64_t kMany = 2000;  // records

// Appends parts until the tape is to end. Why it ends, or "" if it does not.
template <typename Part>
std::string EndOf(Tape& tape, Repeats& repeats, Part part) {
  while (tape.num_records() < kMany) {
    if (repeats.IsDue(tape)) {
      if (const char* why = repeats.WhyEnd(tape, /*in_backward=*/false)) return why;
    }
    part();
  }
  return "";
}

class RepeatsTest : public testing::Test {
 protected:
  TapeId Input() { return tape_.Use(NewValue(FloatType({4})), nullptr); }

  Tape tape_;
  Repeats repeats_;
};

TEST_F(RepeatsTest, ALoopOverBatchesEndsBetweenTwoOfThem) {
  TapeId total = Input();
  const std::string why =
      EndOf(tape_, repeats_, [&] { total = Add(tape_, total, Relu(tape_, Input())); });
  EXPECT_EQ(why, "repeats");
  EXPECT_EQ(tape_.num_records() % 2, 0);
  EXPECT_LT(tape_.num_records(), 1024);
}

TEST_F(RepeatsTest, LayersWithParametersThatLiveOnAreNoRepetition) {
  std::vector<ValuePtr> parameters;
  TapeId x = Input();
  const std::string why = EndOf(tape_, repeats_, [&] {
    parameters.push_back(NewValue(FloatType({4})));
    x = Relu(tape_, Add(tape_, x, tape_.Use(parameters.back(), nullptr)));
  });
  EXPECT_EQ(why, "");
}

TEST_F(RepeatsTest, AChainWithoutInputsIsOneProgram) {
  TapeId x = Input();
  EXPECT_EQ(EndOf(tape_, repeats_, [&] { x = Relu(tape_, x); }), "");
}

TEST_F(RepeatsTest, NothingEndsInABackwardPass) {
  TapeId total = Input();
  while (tape_.num_records() < kMany) {
    EXPECT_EQ(repeats_.WhyEnd(tape_, /*in_backward=*/true), nullptr);
    for (int i = 0; i < 250; ++i) total = Add(tape_, total, Relu(tape_, Input()));
  }
}

TEST_F(RepeatsTest, TheNextTapesOfTheSamePartsAreAsLong) {
  std::vector<int64_t> lengths;
  for (int k = 0; k < 4; ++k) {
    Tape tape;
    TapeId total = tape.Use(NewValue(FloatType({4})), nullptr);
    EXPECT_EQ(EndOf(tape, repeats_,
                    [&] {
                      const TapeId batch = tape.Use(NewValue(FloatType({4})), nullptr);
                      total = Add(tape, total, Relu(tape, batch));
                    }),
              "repeats");
    lengths.push_back(tape.num_records());
  }
  EXPECT_EQ(lengths[2], lengths[1]);
  EXPECT_EQ(lengths[3], lengths[1]);
}

}  // namespace
}  // namespace spmd::trace
