// SPDX-License-Identifier: Apache-2.0
// What a failed run was to make and can still be made. An op that fails takes with it what depends
// on it, and nothing else:
//
//   a = x[bad]; b = a + 1; c = x * 2; one program makes them and fails
//   c              is made again, by a program of its own
//   a, b           hold what their Buffers held before, or are lost and say what aten::index said
//
// Of several ops that fail, each value is lost for one that it depends on.
//
// What a step of an optimizer writes depends on all that any of it does: the step happens or not
// (csrc/trace/optimizer_step.h). Of a step that was under way nothing stays. A counter (a tensor
// that becomes what depends on nothing but itself, as the number of batches that a normalization
// has seen) belongs to what is written next after it, unless an op between the two may have failed.
#pragma once

#include "csrc/trace/session_state.h"

namespace spmd::trace {

// Once for each run. Requires: the run is over and has failed. Afterwards Values that could be made
// have tiles, and those of arguments that the run did not take have theirs back; `errors` says what
// the others are lost for.
//
// Results are grouped by which they depend on of the arguments that are missing and the ops that
// may have failed: those that look at values, and those named like the one that did. A group that
// depends on no more than another is tried first; what depends on all that a failed group depends
// on is lost with it. Results of a group that fails for an op that is none of them are tried one
// by one. At most a few programs are tried; none after Ctrl-C or without memory.
void Recover(Session::State& state, Session::State::InFlight& in_flight);

// The entry of a run; null when it is not in flight.
Session::State::InFlight* FindInFlight(Session::State& state, const runtime::PendingRunPtr& run);

}  // namespace spmd::trace
