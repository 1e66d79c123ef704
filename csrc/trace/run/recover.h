// SPDX-License-Identifier: Apache-2.0
// Computes what a failed run should have computed and still can. If an op fails, only what depends
// on it is lost:
//
//   a = x[bad]; b = a + 1; c = x * 2; one program computes them and fails
//   c              is computed again, op by op and unsharded
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
// The ops that the wanted values need run once more, one by one on whole tensors. One that fails
// loses what depends on it. Nothing is computed after Ctrl-C or when memory ran out.
void Recover(SessionState& state, RunInFlight& in_flight);

}  // namespace spmd::trace
