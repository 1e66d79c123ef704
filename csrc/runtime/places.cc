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

Layout WholeLayout(const Dims& dims) {
  return Layout(Grid::SingleDevice(), Sharding::Replicated(static_cast<int>(dims.size())), dims);
}

Placement PlacementOf(const TiledTensor& value) {
  if (value.whole) return Placement(WholeLayout(value.layout.dims()), /*per_position=*/false);
  return Placement(value.layout, value.per_position);
}

}  // namespace spmd::runtime
