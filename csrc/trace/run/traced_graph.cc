// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/traced_graph.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/pending_graph.h"
#include "csrc/util/status.h"

namespace spmd::trace {
namespace {

LowerOptions OptionsFor(const MeshSet& set) { return {&set.meshes, &set.grids, {}}; }

}  // namespace

std::vector<Mesh> WithFirst(const Mesh& mesh, absl::Span<const Mesh> others) {
  std::vector<Mesh> meshes = {mesh};
  for (const Mesh& other : others) {
    if (std::find(meshes.begin(), meshes.end(), other) == meshes.end()) meshes.push_back(other);
  }
  return meshes;
}

ShapeOnly MakeShapeOnly(at::ScalarType type, at::IntArrayRef sizes) {
  const at::Tensor shape = at::empty(sizes, at::TensorOptions(at::kMeta).dtype(type));
  auto value = c10::make_intrusive<Value>(TypeOf(shape));
  value->host = shape;
  return {NewTensor(TensorMeta::Contiguous(type, sizes), value), value};
}

absl::StatusOr<TracedGraph> TraceGraph(SessionState& state, absl::Span<const ShapeOnly> inputs,
                                       absl::Span<const at::Tensor> results, const Mesh& mesh,
                                       absl::Span<const TracedParameter> parameters) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  std::vector<OutputSpec> outputs;
  const auto pending = [&](const at::Tensor& tensor) -> TapeId {
    const ValuePtr& value = BufferOf(tensor)->value();
    return value != nullptr && value->pending && value->tape == tape.number() ? value->id : kNoId;
  };
  for (const ShapeOnly& input : inputs) {
    const Value& value = *input.value;
    const bool used = value.tape == tape.number();
    if (!used && value.tape != 0) {
      return absl::FailedPreconditionError(
          "a program ran while the model was traced, since its values were asked for or too many "
          "ops waited");
    }
    const TapeId now = pending(input.tensor);
    if (now != kNoId) outputs.push_back({now, used ? value.id : kNoId});
  }
  std::vector<int> output_of(results.size(), -1);
  for (size_t k = 0; k < results.size(); ++k) {
    const TapeId id = pending(results[k]);
    if (id == kNoId) continue;
    output_of[k] = static_cast<int>(outputs.size());
    outputs.push_back({id});
  }
  for (const TracedParameter& p : parameters) {
    if (p.gradient < 0 || output_of[p.gradient] < 0) continue;
    OutputSpec& output = outputs[output_of[p.gradient]];
    // Takes the place of the mark that a candidate has.
    const PartitionSpec none(tape.type(output.value).rank());
    output.like = std::make_shared<const Mark>(Mark{mesh, none});
  }
  TracedGraph traced{.mesh = mesh};
  traced.meshes.meshes = WithFirst(mesh, MeshesOfMarks(tape, NeededFor(tape, outputs)));
  traced.meshes.grids = Grid::ForMeshes(traced.meshes.meshes);
  SPMD_ASSIGN_OR_RETURN(Lowered lowered, Lower(tape, outputs, OptionsFor(traced.meshes)));
  for (const ShapeOnly& input : inputs) {
    ir::ValueId& found = traced.inputs.emplace_back(ir::kNoValue);
    for (size_t k = 0; k < lowered.inputs.size(); ++k) {
      const bool same = tape.inputs()[lowered.inputs[k]].id == input.value->id;
      if (same && input.value->tape == tape.number()) found = lowered.graph.inputs()[k];
    }
  }
  traced.is_parameter.resize(inputs.size());
  traced.gradients.resize(inputs.size(), ir::kNoValue);
  for (const TracedParameter& p : parameters) {
    traced.is_parameter[p.input] = true;
    if (p.gradient < 0 || output_of[p.gradient] < 0) continue;
    traced.gradients[p.input] = lowered.graph.outputs()[output_of[p.gradient]].value;
  }
  traced.graph = std::move(lowered.graph);
  return traced;
}

absl::StatusOr<ir::Graph> TracedGraph::Marked(
    absl::Span<const std::pair<int, PartitionSpec>> marks) const {
  ir::Graph marked = graph;
  for (const auto& [number, spec] : marks) {
    SPMD_CHECK(number >= 0 && number < static_cast<int>(inputs.size()), "input ", number, " of ",
               inputs.size());
    const ir::ValueId v = inputs[number];
    const ir::ValueId gradient = gradients.empty() ? ir::kNoValue : gradients[number];
    for (const ir::ValueId w : {v, gradient}) {
      if (w == ir::kNoValue) continue;
      SPMD_ASSIGN_OR_RETURN(
          ir::Annotation annotation,
          AnnotationOf({mesh, spec}, marked.type(w).rank(), OptionsFor(meshes), "auto_shard"));
      annotation.of_parameter = w == v && !is_parameter.empty() && is_parameter[number];
      marked.Annotate(w, std::move(annotation));
    }
  }
  return marked;
}

}  // namespace spmd::trace
