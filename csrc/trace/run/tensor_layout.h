// SPDX-License-Identifier: Apache-2.0
// The layout of a tensor, from which sharding_of, local_shards and pictures are made.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/sharding/layout.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct SessionState;

struct TensorLayout {
  Layout layout;             // of the tensor itself, not of what it is a view of
  bool provisional = false;  // pending: the layout if the tape were cut now
};
// The layout of `tensor`, or nullopt if nothing determines it yet: unmarked data that no program
// has used. Runs nothing. Errors: those of compiling what is pending.
// Requires: the session's lock is held; `tensor` is on this device.
absl::StatusOr<std::optional<TensorLayout>> LayoutOfTensor(SessionState& state,
                                                           const at::Tensor& tensor);
absl::StatusOr<Layout> LayoutOfMark(SessionState& state, const Mark& mark, const Dims& dims);
// The layout of data about which nothing is known: replicated over the mesh that was used last.
Layout LayoutOfNew(SessionState& state, const Dims& dims);

// For each device, in the layout's order, its id and the box that it holds. Takes the lock.
struct DeviceBox {
  int64_t device;
  Box box;
};
absl::StatusOr<std::vector<DeviceBox>> DeviceBoxes(const at::Tensor& tensor);
std::vector<DeviceBox> BoxesOfLayout(const Layout& layout);
// The same for a tensor of these sizes with this mark. In csrc/trace/api/session_shards.cc.
// Errors: InvalidArgument or OutOfRange for a mesh or a spec that does not fit.
absl::StatusOr<std::vector<DeviceBox>> BoxesOfMark(const Mesh& mesh, const PartitionSpec& spec,
                                                   const std::vector<int64_t>& sizes);

}  // namespace spmd::trace
