// SPDX-License-Identifier: Apache-2.0
// From a tape to a program that can run. Programs that take long to compile are kept on disk
// (csrc/partition/compile_cache.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

// `late_starts`: records whose starts (csrc/trace/starts.h) are passed at run time. `reason` and
// `why` are for explain_compile: what sets the tape apart, and what made the cut.
absl::StatusOr<CachedProgramPtr> Compile(Session::State& state, Tape& tape,
                                         std::vector<OutputSpec> outputs, const Hash128& key,
                                         std::vector<int> late_starts, const std::string& reason,
                                         const std::string& why);

// A program that has not got its annotated graph and the reasons for it gets them.
absl::Status Explain(Session::State& state, const std::shared_ptr<CompiledProgram>& program);

}  // namespace spmd::trace
