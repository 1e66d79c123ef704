// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/devices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/trace/device/place.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

void UseBackend(SessionState& state, std::shared_ptr<runtime::Backend> backend) {
  if (!backend->planning()) SetFirstPlace(backend->here().device);
  state.devices.backend = std::move(backend);
  if (!state.devices.IsOne()) return;
  state.tape->LeaveOutMarks();  // no mesh was used before
  for (auto& [thread, work] : state.threads.work) work.tape->LeaveOutMarks();
}

std::unique_ptr<Tape> NewTape(const SessionState& state) {
  return std::make_unique<Tape>(/*marks=*/!state.devices.IsOne());
}

absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(SessionState& state) {
  Devices& devices = state.devices;
  if (devices.backend != nullptr) return devices.backend;
  SPMD_RETURN_IF_ERROR(state.bad_options);
  std::string name = devices.backend_name;
  std::optional<int64_t> count = devices.count;
  if (name.empty()) name = state.options.backend;
  if (!count.has_value()) count = state.options.num_devices;
  devices.count_is_set = count.has_value();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend,
                        runtime::MakeBackend(name, count));
  SPMD_RETURN_IF_ERROR(JoinProcesses(state, backend));
  UseBackend(state, std::move(backend));
  // So that what is uploaded before the first program is loaded counts as the device's memory.
  const runtime::Backend& made = *devices.backend;
  if (LoadOptions(state).keep_memory && made.has_one_place() && !made.planning()) {
    runtime::TileMemory::Install();
  }
  return devices.backend;
}

partition::CompileOptions CompileOptionsFor(const SessionState& state,
                                            const runtime::Backend& backend) {
  partition::CompileOptions options;
  options.machine =
      state.options.price_moves ? &backend.machine() : &machine::NominalWithFreeMoves();
  options.memory_limit = state.options.memory_limit;
  options.verify = state.options.verify || state.options.check_passes;
  return options;
}

runtime::LoadedProgram::Options LoadOptions(const SessionState& state) {
  const Options& options = state.options;
  const bool one_place = options.one_place && !state.processes.several();
  // The queue's thread is the one that returns kept memory (TileMemory::Trim); with `sync` there is
  // no such thread.
  return {.deduplicate = options.deduplicate,
          .coalesce = options.coalesce && one_place && !options.verify,
          .turns = options.turns,
          .one_place = one_place,
          .memory_limit = options.memory_limit,
          .keep_memory = options.keep_memory && !options.sync};
}

ProgramOptions ProgramOptionsOf(const SessionState& state) {
  const runtime::LoadedProgram::Options load = LoadOptions(state);
  return {.deduplicate = load.deduplicate,
          .coalesce = load.coalesce,
          .one_place = load.one_place,
          .price_moves = state.options.price_moves,
          .turns = load.turns,
          .memory_limit = load.memory_limit};
}

absl::Status NoteMesh(SessionState& state, const Mesh& mesh) {
  if (state.meshes.latest() == mesh) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  int64_t last = 0;
  for (const int64_t id : mesh.device_ids()) last = std::max(last, id);
  if (last >= backend->num_devices() && (state.devices.count_is_set || !backend->elastic())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh ", mesh.ToString(), " needs device ", last, ", but backend '", backend->name(),
        "' has ", backend->num_devices(), " devices",
        state.devices.count_is_set ? " (the number that was set)" : "",
        state.processes.several() ? "; the processes of a job deal a fixed number of devices: set "
                                    "SPMD_NUM_DEVICES"
                                  : ""));
  }
  state.meshes.Use(mesh);
  return absl::OkStatus();
}

}  // namespace spmd::trace
