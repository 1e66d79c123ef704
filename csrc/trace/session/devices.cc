// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/devices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/environment.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(SessionState& state) {
  if (state.devices.backend != nullptr) return state.devices.backend;
  std::string name = state.devices.backend_name;
  std::optional<int64_t> devices = state.devices.count;
  if (name.empty()) name = runtime::EnvironmentBackend();
  if (!devices.has_value()) {
    SPMD_ASSIGN_OR_RETURN(devices, runtime::EnvironmentDeviceCount());
  }
  state.devices.count_is_set = devices.has_value();
  SPMD_ASSIGN_OR_RETURN(state.devices.backend, runtime::MakeBackend(name, devices));
  return state.devices.backend;
}

partition::CompileOptions OptionsFor(const SessionState& state, const runtime::Backend& backend) {
  partition::CompileOptions options;
  options.machine = &backend.machine();
  static const bool check_passes = runtime::EnvironmentCheckPasses();
  options.verify = state.verify || check_passes;
  return options;
}

runtime::LoadedProgram::Options LoadOptions(const SessionState& state) {
  using Turns = runtime::LoadedProgram::Options::Turns;
  static const std::optional<bool> turns = runtime::EnvironmentTurns();
  return {state.deduplicate, state.coalesce && !state.verify,
          !turns ? Turns::kWhereTheyPay : (*turns ? Turns::kAlways : Turns::kNever)};
}

absl::Status NoteMesh(SessionState& state, const Mesh& mesh) {
  if (state.meshes.latest() == mesh) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  int64_t last = 0;
  for (const int64_t id : mesh.device_ids()) last = std::max(last, id);
  if (last >= backend->num_devices() && (state.devices.count_is_set || !backend->elastic())) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh ", mesh.ToString(), " needs device ", last, ", but backend '",
                     backend->name(), "' has ", backend->num_devices(), " devices",
                     state.devices.count_is_set ? " (the number that was set)" : ""));
  }
  state.meshes.Use(mesh);
  return absl::OkStatus();
}

}  // namespace spmd::trace
