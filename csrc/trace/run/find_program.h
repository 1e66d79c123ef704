// SPDX-License-Identifier: Apache-2.0
// The program for a tape: one that was compiled for an equal tape, or a new one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Finds a program whose results include every live value, or compiles one. `why` is what cut the
// tape, for explain_compile.
// Errors: those of Compile.
absl::StatusOr<CachedProgramPtr> FindOrCompile(SessionState& state, Tape& tape, const Live& live,
                                               const std::string& why);

}  // namespace spmd::trace
