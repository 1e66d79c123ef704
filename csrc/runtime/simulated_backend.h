// SPDX-License-Identifier: Apache-2.0
// A described machine: its devices, memory and links are simulated, arithmetic is done on the CPU.
//
//   "mock_tpu:v4-16"                       computes
//   "mock_gpu:128xh100:plan"               knows shapes only and computes nothing
//   "mock_tpu:v5p-2048:plan:unlimited"     and has as much memory as a program asks for
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/backend_factory.h"

namespace spmd::runtime {

// What a backend's folder says of the machine that it simulates.
struct Simulated {
  machine::Machine machine;  // named as machine::ParseSystem reads it
  int64_t devices = 1;
  std::string wiring;  // "topology 2×2×2"
  std::string noun;    // "slice", for messages
};

// The backend of `request`, whose arguments are the name of a machine, or nothing for `otherwise`,
// and then perhaps ":plan" or ":plan:unlimited".
// Errors: those of `find`; InvalidArgument for another number of devices than the machine's.
absl::StatusOr<std::shared_ptr<Backend>> MakeSimulated(
    const backends::BackendRequest& request, absl::string_view otherwise,
    absl::FunctionRef<absl::StatusOr<Simulated>(absl::string_view name)> find);

}  // namespace spmd::runtime
