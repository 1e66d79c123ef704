// SPDX-License-Identifier: Apache-2.0
// One call of a graph alone: on whole values, or as a device runs it on its tiles.
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

// The inputs and run-time scalars of a graph.
struct GraphInputs {
  std::vector<at::Tensor> inputs;  // whole, on the host
  std::vector<c10::Scalar> scalars;
};

// Runs `graph` and waits. Returns its outputs, on the host.
// Errors: those of compiling and running `graph`.
absl::StatusOr<std::vector<at::Tensor>> RunGraph(const ir::Graph& graph,
                                                 const std::shared_ptr<runtime::Backend>& backend,
                                                 const GraphInputs& given);

// One node of a graph as a graph of its own, unsharded: its operands are the inputs, its results
// the outputs.
ir::Graph Alone(const ir::Graph& graph, ir::NodeId id);
// The numbers of the node's results that have elements. A result that an output mask leaves out has
// none in the graph, and is not computed.
std::vector<int> ResultsWithElements(const ir::Graph& graph, ir::NodeId id);
// A tensor without values for one of the others.
at::Tensor EmptyHost(const TensorType& type);

// Where the tiles of a call are in the global tensors. Windows may reach beyond the tensor.
struct CallTiles {
  rules::CutFactors cut;
  std::vector<Box> operands;  // empty for an absent one
  std::vector<Box> results;
};
// The same for the call on `tiles`, with the attributes that the op's rule gives the tiles.
// Requires: the op has a rule that fits the call of node `id`.
absl::StatusOr<ir::Graph> AloneOnTiles(const ir::Graph& graph, ir::NodeId id,
                                       const CallTiles& tiles);

}  // namespace spmd::trace
