// SPDX-License-Identifier: Apache-2.0
// What a failed run does to what is pending: values that depend on a lost value are given up, and
// an optimizer step that lost one value is lost as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/session/optimizer_step.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Which failures of runs that are over count as losses, in addition to values that are lost
// already: none, those that have been reported, or all, which are then reported.
enum class Failures : uint8_t { kNone, kTold, kAll };

// The status of a value that is lost by `status`.
absl::Status Lost(const absl::Status& status);

// Gives up the values and steps that depend on lost values, and removes them from `live`.
// Errors: the failure by which a step is lost.
absl::Status GiveUpDependents(SessionState& state, const Tape& tape, Failures failures,
                              std::vector<StepPart>& steps, Live& live);
// Loses everything on a tape that never ran.
void LoseAll(SessionState& state, const Tape& tape, std::vector<StepPart>& steps,
             const absl::Status& status);

// The live values that a part of a step computes.
std::vector<TapeId> MadeBy(const StepPart& part, const Tape& tape, const Live& live);
// True if so many steps have failed that the next one reports it.
bool ManyStepsFailed(const SessionState& state);

// True if the failure has not been reported. It is reported once, for whichever of the runs that it
// stopped is looked at first.
bool Unreported(SessionState& state, const RunInFlight& f);
// Notes that the failure is reported.
void Report(SessionState& state, RunInFlight& f);
// Reports a failure: counts lost steps, and gives up pending values that depend on lost ones;
// otherwise they would be computed from what Buffers get back. Returns the status to report.
absl::Status Tell(SessionState& state, const absl::Status& status);

}  // namespace spmd::trace
