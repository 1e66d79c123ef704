// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/places.h"

namespace spmd::runtime {

bool NeedsPositions(const Grid& grid, const Backend& backend) {
  if (backend.has_one_place()) return false;
  const Place first = backend.place(grid.device_ids()[0]);
  for (int64_t id : grid.device_ids()) {
    if (backend.place(id) != first) return true;
  }
  return false;
}

Layout WholeLayout(const Dims& dims) {
  return Layout(Grid::SingleDevice(), Sharding::Replicated(static_cast<int>(dims.size())), dims);
}

Placement PlacementOf(const TiledTensor& value) {
  if (value.whole) return Placement(WholeLayout(value.layout.dims()), /*per_position=*/false);
  return Placement(value.layout, value.per_position, {}, value.devices_per_process);
}

}  // namespace spmd::runtime
