// SPDX-License-Identifier: Apache-2.0
// Where a tensor lies: what sharding_of, local_shards and pictures are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/sharding/layout.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

struct TensorLayout {
  Layout layout;             // of the tensor itself, not of what it is a view of
  bool provisional = false;  // pending: where it would lie if the tape were cut now
};
// nullopt where nothing says it yet: data that no program has used, without a mark. Runs nothing.
// Errors: those of compiling what is pending. Requires: the lock is held; the tensor is ours.
absl::StatusOr<std::optional<TensorLayout>> LayoutOfTensor(Session::State& state,
                                                           const at::Tensor& tensor);
absl::StatusOr<Layout> LayoutOfMark(Session::State& state, const Mark& mark, const Dims& dims);
// Of data that nothing says anything about: whole, on every device of the mesh that was used last.
Layout LayoutOfNew(Session::State& state, const Dims& dims);

// By device, in the layout's order: its id and what it holds. Takes the lock.
struct DeviceBox {
  int64_t device;
  Box box;
};
absl::StatusOr<std::vector<DeviceBox>> DeviceBoxes(const at::Tensor& tensor);

}  // namespace spmd::trace
