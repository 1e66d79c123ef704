// SPDX-License-Identifier: Apache-2.0
// One move of a whole value, for tests of moves.
#pragma once

#include <memory>
#include <vector>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/places.h"
#include "csrc/runtime/tiled_tensor.h"

namespace spmd::runtime {

// The value in another layout, on any grid over the same backend, by the moves of programs. Shares
// the tiles that are equal in both layouts.
inline TiledTensorPtr MoveTo(const TiledTensor& value, const Layout& layout, Backend& backend) {
  const DispatchGuard guard;
  const Placement to(layout, NeedsPositions(layout, backend));
  const MovePlan plan = MovePlan::Make(PlacementOf(value), to, backend);
  auto result =
      std::make_shared<TiledTensor>(TiledTensor{layout, value.dtype, {}, to.per_position()});
  std::vector<at::Tensor> sources = value.tiles;
  for (int64_t i = 0; i < to.count(); ++i) {
    result->tiles.push_back(RunTileMove(plan, i, {absl::MakeSpan(sources), {}, value.dtype}));
  }
  return result;
}

}  // namespace spmd::runtime
