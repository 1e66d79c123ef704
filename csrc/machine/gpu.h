// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "csrc/machine/machine.h"

namespace spmd::machine {

// The machine of a GPU by its model ("A100", "H100", "H200", "B200") or by the driver's name for it
// ("NVIDIA H100 80GB HBM3"); null for a GPU that is not in the table. `memory_bytes` is the
// model's; the backend asks a real device how much is free.
const Machine* FindGpu(absl::string_view name);
std::vector<std::string> GpuModels();
// Bytes per second, one way, from one GPU to other nodes; 0 for a machine that is not in the table.
double InfiniBandRate(const Machine& gpu);

}  // namespace spmd::machine
