// SPDX-License-Identifier: Apache-2.0
// Compiles a tape into a program that can run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// `late_starts` are the records whose starts (csrc/trace/tape/starts.h) are passed at run time.
// `reason` and `why` are for explain_compile: how the tape differs from earlier ones, and what cut
// it.
absl::StatusOr<CachedProgramPtr> Compile(SessionState& state, Tape& tape,
                                         std::vector<OutputSpec> outputs, const Hash128& key,
                                         std::vector<int> late_starts, const std::string& reason,
                                         const std::string& why);

// Gives `program` its annotated graph and the reasons for it, if it lacks them.
absl::Status Explain(SessionState& state, const std::shared_ptr<CompiledProgram>& program);

}  // namespace spmd::trace
