// SPDX-License-Identifier: Apache-2.0
// Computes what a failed run should have computed and still can. If an op fails, only what depends
// on it is lost:
//
//   a = x[bad]; b = a + 1; c = x * 2; one program computes them and fails
//   c              is computed again, by a program of its own
//   a, b           get back what their Buffers held before, or are lost with aten::index's error
//
// If several ops fail, each value is lost for one that it depends on.
//
// The values that a step of an optimizer writes depend on everything that the step does: it happens
// or not (csrc/trace/session/optimizer_step.h). Of a step that was under way nothing remains. A
// counter (a tensor whose new value depends on nothing but its old one, such as the number of
// batches that a normalization has seen) belongs to what is written next after it, unless an op
// between the two may have failed.
#pragma once

#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Called once for each run. Afterwards Values that could be computed have tiles, and the Values of
// arguments that the run did not take have theirs back; `in_flight.errors` says for what the others
// are lost.
// Requires: the run of `in_flight` is over and has failed.
//
// Results are grouped by the missing arguments and fallible ops that they depend on; fallible are
// ops that read values, and ops with the name of the one that failed. Groups with fewer dependences
// are tried first, and a group is lost with a failed group if it depends on all that that group
// depends on. If a group fails for an op that is not fallible, its results are tried one by one.
// Only a few programs are tried, and none after Ctrl-C or when memory ran out.
void Recover(SessionState& state, RunInFlight& in_flight);

}  // namespace spmd::trace
