// SPDX-License-Identifier: Apache-2.0
// What puts the lanes of a manual region in front of a tensor, and takes them back
// (docs/design/0041-manual-regions.md): `spmd::reshard`, a reshape and a permutation. They are
// differentiated in one step, and replayed as one call, `spmd::_to_lanes` or `spmd::_from_lanes`,
// for all tensors together. Where something else sees ops before the device does (transforms,
// modes, tracers, tangents), these three ops are called.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "csrc/util/dims.h"

namespace spmd::trace {

struct KnownMark;

// Immutable; used by autograd nodes, too.
struct LaneForm {
  int64_t number = 0;      // two forms never have the same
  std::string mesh, spec;  // as texts, of the whole tensor
  std::shared_ptr<KnownMark> mark;
  Dims whole;                  // the tensor's sizes
  Dims apart;                  // the same with the lanes apart; empty if there are none
  std::vector<int64_t> order;  // of these dimensions, the lanes first; empty: as they are
  std::vector<int64_t> back;   // the inverse of `order`
};
using LaneFormPtr = std::shared_ptr<const LaneForm>;

// Errors: throws what reading the texts throws, and std::invalid_argument for sizes and an order
// that do not belong together.
LaneFormPtr MakeLaneForm(std::string mesh, std::string spec, Dims whole, Dims apart,
                         std::vector<int64_t> order);

// Requires: the forms have one mesh; each tensor has the sizes of its form, `whole`, and `lanes`
// those that ToLanes gives. Autograd sees one step for all tensors.
std::vector<at::Tensor> ToLanes(absl::Span<const at::Tensor> wholes,
                                absl::Span<const LaneFormPtr> forms);
// The same in two steps: without autograd, and what autograd sees of it. `edges` are those of the
// wholes; tensors with an invalid one are not differentiated. The first requires that there are
// wholes, and that nothing sees ops on them before the device does. It tells whether the call was
// replayed.
struct NewLanes {
  std::vector<at::Tensor> lanes;
  bool replayed;
};
NewLanes ToLanesWithoutHistory(absl::Span<const at::Tensor> wholes,
                               absl::Span<const LaneFormPtr> forms);
void GiveHistory(absl::Span<const at::Tensor> lanes, absl::Span<const LaneFormPtr> forms,
                 const torch::autograd::edge_list& edges);
at::Tensor FromLanes(const at::Tensor& lanes, const LaneFormPtr& form);

// Defines the ops, once per process.
void RegisterLanes();

}  // namespace spmd::trace
