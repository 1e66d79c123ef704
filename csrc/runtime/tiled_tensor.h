// SPDX-License-Identifier: Apache-2.0
// A value on the devices: its layout and its distinct tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "csrc/ir/type.h"
#include "csrc/runtime/backend.h"
#include "csrc/sharding/layout.h"

namespace spmd::runtime {

// Tile t is a tensor of the size of layout.BoxOfTile(t), on the torch device of the backend.
// Devices that hold the same tile share it. With deduplication off there is one tensor per device
// position instead, indexed by position (`per_position`). Where several processes share the devices
// (`devices_per_process`, see Homes) each of them holds the tiles of its own devices; the others
// are undefined tensors. Where programs run coalesced (csrc/program/one_place/coalesce.h) there is
// one tensor, the `whole` value, in which partial sums along unreduced axes are already summed; the
// tiles of all devices are parts of it. No tensor that the host gets shares memory with a tile. In
// planning mode tiles are meta tensors.
struct TiledTensor {
  Layout layout;
  DType dtype;
  std::vector<at::Tensor> tiles;
  bool per_position = false;
  bool whole = false;
  int64_t devices_per_process = 0;
};
using TiledTensorPtr = std::shared_ptr<TiledTensor>;

// Copies `host` into tiles, or into one tensor with `whole`. If `layout` has unreduced axes, the
// devices at coordinate 0 hold the value and the others the identity of the reduction.
// Requires: `host` has the size of `layout`.
TiledTensorPtr Upload(const at::Tensor& host, const Layout& layout, Backend& backend,
                      bool whole = false);
// Whether the value has shapes only, which planning backends make.
bool IsPlanned(const TiledTensor& value);
// The whole value on the host as a new contiguous tensor; partial sums are summed in device order.
// If the processes do not all hold all of it, this is collective, and `peers` exchanges the rest.
// Errors: FailedPrecondition on planning backends (a PlanningError in Python); those of the
// exchange.
absl::StatusOr<at::Tensor> Download(const TiledTensor& value, Peers* peers = nullptr);
// True if every process holds all of the value, so that reading it takes no exchange.
bool IsHeldByAll(const TiledTensor& value, const Peers* peers);

c10::ScalarType ToScalarType(DType dtype);
DType FromScalarType(c10::ScalarType type);

}  // namespace spmd::runtime
