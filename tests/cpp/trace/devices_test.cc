// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/devices.h"

#include <gtest/gtest.h>

#include "csrc/trace/session/session_state.h"

namespace spmd::trace {
namespace {

// Inputs are uploaded with these options, too: as one tile only if programs are coalesced.
TEST(LoadOptionsTest, WithoutOnePlaceNothingIsCoalescedAndNobodyTakesTurns) {
  for (const bool one_place : {true, false}) {
    SessionState state;
    state.options.one_place = one_place;
    state.options.turns = Turns::kAlways;
    EXPECT_EQ(LoadOptions(state).coalesce, one_place);
    EXPECT_EQ(LoadOptions(state).turns, one_place ? Turns::kAlways : Turns::kNever);
    EXPECT_EQ(LoadOptions(state).one_place, one_place);
  }
}

}  // namespace
}  // namespace spmd::trace
