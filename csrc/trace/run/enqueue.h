// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Gives the program of a tape to the queue, with the tape's inputs and run-time scalars as its
// arguments. An input that nothing but the tape holds is donated. `results`, by output of the
// program, are to be made by the run.
// Errors: those of the backend; the failure by which an input is lost.
absl::StatusOr<runtime::PendingRunPtr> Enqueue(SessionState& state, const Tape& tape,
                                               const CachedProgramPtr& program_of_tape,
                                               const std::vector<ValuePtr>& results);

}  // namespace spmd::trace
