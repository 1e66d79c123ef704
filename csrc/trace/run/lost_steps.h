// SPDX-License-Identifier: Apache-2.0
// Optimizer steps of runs that failed (csrc/trace/session/optimizer_step.h).
#pragma once

#include <vector>

#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Forgets the steps under way whose Python call is over, since an exception has left it.
void LeaveSteps(SessionState& state);
// The steps that the program of what is pending will compute; nothing recorded afterwards belongs
// to them.
std::vector<StepPart> TakeSteps(SessionState& state);
// Waits for all runs, and returns how many steps are lost of which no error has told: the caller's
// does.
int TakeLostSteps(SessionState& state);

}  // namespace spmd::trace
