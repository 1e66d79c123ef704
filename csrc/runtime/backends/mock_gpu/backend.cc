// SPDX-License-Identifier: Apache-2.0
// Simulated GPUs in nodes of eight, joined by InfiniBand: "mock_gpu:8xh100",
// "mock_gpu:128xh100:plan".
#include "csrc/machine/system.h"
#include "csrc/runtime/simulated_backend.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::mock_gpu {
namespace {

absl::StatusOr<Simulated> Find(absl::string_view name) {
  SPMD_ASSIGN_OR_RETURN(machine::System system, machine::ParseGpuCluster(name));
  return Simulated{system.device, system.num_devices(), system.ToString(), "cluster"};
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  return MakeSimulated(request, "8xh100", &Find);
}

}  // namespace spmd::runtime::backends::mock_gpu
