// SPDX-License-Identifier: Apache-2.0
// What a backend's folder provides: one function, `Make`, in the namespace
// spmd::runtime::backends::<folder>. The build lists the folders.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "csrc/runtime/backend.h"

namespace spmd::runtime::backends {

struct BackendRequest {
  std::string name;                // as asked for: "mock_tpu:v4-16"
  std::string arguments;           // what follows the first colon: "v4-16", or ""
  std::optional<int64_t> devices;  // positive
  // The number of virtual devices if neither `devices` nor the name gives one.
  std::optional<int64_t> otherwise;
  const PartOfJob* job = nullptr;  // of this process, if it has one
};

using BackendFactory = absl::StatusOr<std::shared_ptr<Backend>>(const BackendRequest& request);

// request.devices if it is set, else the number of devices that the backend's only argument gives
// ("cpu:16"), else nullopt.
// Errors: InvalidArgument if request.arguments is needed and not a positive number.
absl::StatusOr<std::optional<int64_t>> RequestedDevices(const BackendRequest& request);

}  // namespace spmd::runtime::backends
