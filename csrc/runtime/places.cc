// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/places.h"

namespace spmd::runtime {

bool NeedsPositions(const Grid& grid, const Backend& backend) {
  const c10::Device first = backend.torch_device(grid.device_ids()[0]);
  if (first.is_cpu() || first.is_meta()) return false;  // one place, whatever the device
  for (int64_t id : grid.device_ids()) {
    if (backend.torch_device(id) != first) return true;
  }
  return false;
}

}  // namespace spmd::runtime
