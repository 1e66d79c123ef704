// SPDX-License-Identifier: Apache-2.0
// Optimizer steps of runs that failed: what they changed on the host is put back.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// The steps that the program of what is pending will compute; nothing recorded afterwards belongs
// to them.
std::vector<StepPart> TakeSteps(SessionState& state);
// Waits for all runs, restores what lost steps have changed on the host, and returns the number of
// these steps.
int UndoSteps(SessionState& state);
// Adds to the message that `steps` steps were undone.
absl::Status SayUndoneSteps(const absl::Status& status, int steps);

}  // namespace spmd::trace
