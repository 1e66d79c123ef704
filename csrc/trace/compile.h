// SPDX-License-Identifier: Apache-2.0
// Compiles a tape into a program that can run. Programs that take long to compile are kept on disk
// (csrc/partition/compile_cache.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

// The options with which programs are compiled for `backend`.
partition::CompileOptions CompileOptionsFor(const Session::State& state,
                                            const runtime::Backend& backend);

// `late_starts` are the records whose starts (csrc/trace/starts.h) are passed at run time. `reason`
// and `why` are for explain_compile: how the tape differs from earlier ones, and what cut it.
absl::StatusOr<CachedProgramPtr> Compile(Session::State& state, Tape& tape,
                                         std::vector<OutputSpec> outputs, const Hash128& key,
                                         std::vector<int> late_starts, const std::string& reason,
                                         const std::string& why);

// Gives `program` its annotated graph and the reasons for it, if it lacks them.
absl::Status Explain(Session::State& state, const std::shared_ptr<CompiledProgram>& program);

}  // namespace spmd::trace
