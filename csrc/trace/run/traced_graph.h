// SPDX-License-Identifier: Apache-2.0
// What was called, as a graph that is compiled for machines on which nothing runs.
//
// Its inputs are tensors that only have a shape, so that a model of any size is traced on any
// backend. Candidates differ in the marks of inputs; one graph serves all of a mesh.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/mesh/mesh.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/program/meshes.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// A tensor that has a shape and a type and can be an operand. Its value is `value`, also after a
// call has written to the tensor. Reading it raises PyTorch's error about tensors without data.
struct ShapeOnly {
  at::Tensor tensor;
  ValuePtr value;
};
ShapeOnly MakeShapeOnly(at::ScalarType type, at::IntArrayRef sizes);

struct TracedGraph {
  ir::Graph graph;
  std::vector<ir::ValueId>
      inputs;  // by given input: its value; kNoValue where nothing depends on it
  // By given input: whether it is a parameter, and the result that is its gradient, or kNoValue.
  std::vector<bool> is_parameter;
  std::vector<ir::ValueId> gradients;
  Mesh mesh;
  MeshSet meshes;  // `mesh`, and those of marks that the graph contains

  // The graph with the inputs of these numbers (of `inputs`) marked, and gradients as their
  // parameters.
  // Errors: those of mark_sharding; InvalidArgument for a number that there is not.
  absl::StatusOr<ir::Graph> Marked(absl::Span<const std::pair<int, PartitionSpec>> marks) const;
};

// `mesh`, then those of `others` that are other meshes, each once: with these grids, grid 0 is that
// of `mesh`.
std::vector<Mesh> WithFirst(const Mesh& mesh, absl::Span<const Mesh> others);

// A parameter, by its number among the inputs, and the number of its gradient among the results, or
// -1.
struct TracedParameter {
  int input;
  int gradient;
};

// The part of the tape that `results` need and that gives each of `inputs` the value which its
// tensor holds now. Grid 0 is that of `mesh`. The tape stays as it is.
// Requires: the tensors of `results` are of the device; the numbers in `parameters` are numbers.
// Errors: FailedPrecondition if an input was read from another tape, since that one has been cut;
// those of Lower.
absl::StatusOr<TracedGraph> TraceGraph(SessionState& state, absl::Span<const ShapeOnly> inputs,
                                       absl::Span<const at::Tensor> results, const Mesh& mesh,
                                       absl::Span<const TracedParameter> parameters);

}  // namespace spmd::trace
