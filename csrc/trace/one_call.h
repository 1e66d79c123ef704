// SPDX-License-Identifier: Apache-2.0
// One call of a graph by itself: whole, or as a device runs it on its tiles.
//
//   %0: f32[10,4] = aten::slice.Tensor(%x, dim=0, start=0, end=10, step=1)
// on the second of two tiles, its results rows 5 to 9 and its operand rows 5 to 9, is
//   %0: f32[5,4] = aten::slice.Tensor(%x, dim=0, start=0, end=5, step=1)
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/rule.h"
#include "csrc/runtime/backend.h"
#include "csrc/util/box.h"

namespace spmd::trace {

// What a graph is given.
struct GraphInputs {
  std::vector<at::Tensor> inputs;  // whole, on the host
  std::vector<c10::Scalar> scalars;
};

// The graph's outputs, on the host. Waits. Errors: those of compiling and running.
absl::StatusOr<std::vector<at::Tensor>> RunGraph(const ir::Graph& graph,
                                                 const std::shared_ptr<runtime::Backend>& backend,
                                                 const GraphInputs& given);

// One node of a graph as a graph of its own: its operands are inputs, its results outputs.
ir::Graph Alone(const ir::Graph& graph, ir::NodeId id);

// Where in the whole tensors the tiles of a call lie. Windows may reach beyond the tensor.
struct CallTiles {
  rules::CutFactors cut;
  std::vector<Box> operands;  // empty for an absent one
  std::vector<Box> results;
};
// The same on tiles, with the attributes that the op's rule gives them.
// Requires: the op has a rule that fits the call.
absl::StatusOr<ir::Graph> AloneOnTiles(const ir::Graph& graph, ir::NodeId id,
                                       const CallTiles& tiles);

}  // namespace spmd::trace
