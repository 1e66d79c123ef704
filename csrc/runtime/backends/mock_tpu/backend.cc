// SPDX-License-Identifier: Apache-2.0
// A simulated TPU slice: "mock_tpu:v4-16", "mock_tpu:v5p-2048:plan".
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/machine/tpu.h"
#include "csrc/runtime/simulated_backend.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::mock_tpu {
namespace {

absl::StatusOr<Simulated> Find(absl::string_view name) {
  SPMD_ASSIGN_OR_RETURN(machine::TpuSlice slice, machine::ParseTpuSlice(name));
  return Simulated{slice.machine, slice.num_devices(),
                   absl::StrCat("topology ", absl::StrJoin(slice.topology, "×")), "slice"};
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  return MakeSimulated(request, "v5e-8", &Find);
}

}  // namespace spmd::runtime::backends::mock_tpu
