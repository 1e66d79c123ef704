// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/mesh/grid.h"

namespace spmd::runtime {

// Which process runs which device. The devices are dealt to the processes in blocks of equal size.
// A grid of one device is run by every process, so values without a mesh are the same everywhere
// and need no messages. A process *holds* the tiles of its own devices; the other tiles of a value
// are holes, that is undefined tensors.
struct Homes {
  static constexpr int kEverywhere = -1;

  int64_t devices_per_process = 0;  // 0: this process runs all devices
  int here = 0;                     // this process

  // The process that runs the device at `position`, or kEverywhere.
  static int Of(const Grid& grid, int64_t position, int64_t devices_per_process) {
    if (devices_per_process == 0 || grid.num_devices() == 1) return kEverywhere;
    return static_cast<int>(grid.device_ids()[position] / devices_per_process);
  }
  int Of(const Grid& grid, int64_t position) const {
    return Of(grid, position, devices_per_process);
  }
  bool IsHere(int home) const { return home == kEverywhere || home == here; }
};

}  // namespace spmd::runtime
