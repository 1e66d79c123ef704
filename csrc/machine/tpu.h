// SPDX-License-Identifier: Apache-2.0
// Slices of TPU pods by name, which the simulated TPU backend simulates.
//
//   ParseTpuSlice("v4-16")    8 devices of 30.75 GiB, topology 2×2×2, no wrap-around links
//   ParseTpuSlice("v5e-256")  256 devices of 15.75 GiB, topology 16×16, a torus
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/machine/machine.h"

namespace spmd::machine {

// Devices are numbered row-major over `topology`, the cores of one chip next to each other.
struct TpuSlice {
  std::string name;        // as given, but "v5litepod-8" becomes "v5e-8"
  std::string generation;  // "v4"
  int64_t num_chips = 0;
  int devices_per_chip = 1;  // 2 where each core is a device of its own (v2, v3)
  int chips_per_host = 1;
  absl::InlinedVector<int64_t, 3> topology;  // chips along each axis; product num_chips
  absl::InlinedVector<bool, 3> wrap;         // axis is a ring rather than a line
  double link_rate = 0;  // bytes per second, one way, of one link between neighbouring chips
  Machine machine;       // one device; link_bandwidth covers both links of one torus axis

  int64_t num_devices() const { return num_chips * devices_per_chip; }
};

// The number in the name counts TensorCores for v2, v3, v4 and v5p, which have two per chip, and
// chips for v5e ("v5litepod" too) and v6e. A device is a core for v2 and v3 and a chip from v4 on.
// Errors: InvalidArgument naming the known generations or the nearest sizes.
absl::StatusOr<TpuSlice> ParseTpuSlice(absl::string_view name);

// "v2", "v3", …, for messages and tests.
std::vector<std::string> TpuGenerations();

}  // namespace spmd::machine
