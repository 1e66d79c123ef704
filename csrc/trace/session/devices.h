// SPDX-License-Identifier: Apache-2.0
// The backend in use, and how programs are loaded on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "csrc/mesh/mesh.h"
#include "csrc/partition/compile.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/executor.h"
#include "csrc/trace/program/program_cache.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

struct SessionState;

// What the user chose. Thread safety: guarded by the session's lock.
struct Devices {
  std::shared_ptr<runtime::Backend> backend;  // null until it is needed
  std::string backend_name;                   // "" until chosen
  std::optional<int64_t> count;
  bool count_is_set = false;

  // Whether there is one device and will never be another: no mesh has more, and so marks shard
  // nothing.
  bool IsOne() const {
    return backend != nullptr && !backend->elastic() && backend->num_devices() == 1;
  }
};

// From here on `backend` runs the programs.
void UseBackend(SessionState& state, std::shared_ptr<runtime::Backend> backend);
// The backend, made at first use.
absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(SessionState& state);
// The options with which programs are compiled for `backend`.
partition::CompileOptions CompileOptionsFor(const SessionState& state,
                                            const runtime::Backend& backend);
// The options with which programs are loaded. While programs are verified, they run tile by tile,
// since the program of tiles is what the unsharded run is compared with.
runtime::LoadedProgram::Options LoadOptions(const SessionState& state);
ProgramOptions ProgramOptionsOf(const SessionState& state);
// A tape for the next ops.
std::unique_ptr<Tape> NewTape(const SessionState& state);
// Notes that `mesh` is used. Errors: InvalidArgument if `mesh` has more devices than the user
// allowed.
absl::Status NoteMesh(SessionState& state, const Mesh& mesh);

}  // namespace spmd::trace
