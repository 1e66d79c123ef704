// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/runtime/backend.h"
#include "csrc/runtime/placement.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/sharding/layout.h"

namespace spmd::runtime {

// True if the devices of the grid are at more than one place, so that there is a tensor per device
// position instead of one per distinct tile.
bool NeedsPositions(const Grid& grid, const Backend& backend);
inline bool NeedsPositions(const Layout& layout, const Backend& backend) {
  return NeedsPositions(*layout.grid(), backend);
}

// The layout of one tile on one device.
Layout WholeLayout(const Dims& dims);
// The placement of `value`: which tensor of value.tiles each device uses.
Placement PlacementOf(const TiledTensor& value);

}  // namespace spmd::runtime
