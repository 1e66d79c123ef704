// SPDX-License-Identifier: Apache-2.0
// A value that lives on devices: its layout and its distinct tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "csrc/ir/type.h"
#include "csrc/runtime/backend.h"
#include "csrc/sharding/layout.h"

namespace spmd::runtime {

// Tile t is a tensor of the size of layout.BoxOfTile(t), on the backend's real device. Devices that
// hold the same tile share it. With deduplication off there is one tensor per device position
// instead, indexed by position (`per_position`). Where programs run coalesced
// (csrc/program/coalesce.h) the one tensor is the `whole` value, of which all devices' tiles are
// parts, terms along unreduced axes being summed. Tiles are never aliased by anything that the host
// gets. In planning mode tiles are meta tensors.
// Thread safety: thread-compatible; tiles are replaced only by the executor.
struct TiledTensor {
  Layout layout;
  DType dtype;
  std::vector<at::Tensor> tiles;
  bool per_position = false;
  bool whole = false;
};
using TiledTensorPtr = std::shared_ptr<TiledTensor>;

// Cuts a host tensor into tiles, or leaves it whole. Copies. Of a layout with unreduced axes the
// devices at coordinate 0 hold the value and the others the reduction's identity. Requires: sizes
// agree.
TiledTensorPtr Upload(const at::Tensor& host, const Layout& layout, Backend& backend,
                      bool whole = false);
// The whole value on the host as a fresh contiguous tensor; unreduced terms are summed (in device
// order). Errors: planning backends raise PlanningError (as FailedPrecondition).
absl::StatusOr<at::Tensor> Download(const TiledTensor& value);

c10::ScalarType ToScalarType(DType dtype);
DType FromScalarType(c10::ScalarType type);

}  // namespace spmd::runtime
