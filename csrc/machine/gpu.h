// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"
#include "csrc/machine/machine.h"

namespace spmd::machine {

// The machine of a GPU by its model ("A100", "H100", "H200") or by what the driver calls it
// ("NVIDIA H100 80GB HBM3"); null for a GPU that is not in the table. Memory is the model's: what
// is free on a device at hand is the backend's to ask.
const Machine* FindGpu(absl::string_view name);

}  // namespace spmd::machine
