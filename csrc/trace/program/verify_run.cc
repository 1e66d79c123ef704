// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/verify_run.h"

#include <ATen/ops/isnan.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/ir/part.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Tensors = std::vector<at::Tensor>;

// The difference that rounding may make in one program, relative to the largest element.
double Tolerance(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return 1e-9;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return 1e-4;
    default:
      return c10::isFloatingType(type) ? 5e-2 : 0;
  }
}

// The largest finite magnitude.
double Magnitude(const at::Tensor& x) {
  const runtime::DispatchGuard guard;
  if (x.numel() == 0) return 0;
  const auto wide = c10::isComplexType(x.scalar_type()) ? at::kComplexDouble : at::kDouble;
  return x.to(wide).abs().nan_to_num(0, 0, 0).max().item<double>();
}

// The largest difference, relative to `scale` or the largest element, whichever is greater; nullopt
// if rounding explains it.
std::optional<double> Difference(const at::Tensor& got, const at::Tensor& expected, double scale) {
  const runtime::DispatchGuard guard;
  if (expected.numel() == 0) return std::nullopt;
  const c10::ScalarType wide =
      c10::isComplexType(expected.scalar_type()) ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = got.to(wide), b = expected.to(wide);
  const at::Tensor both_nan = at::isnan(a).logical_and(at::isnan(b));
  const at::Tensor off = a.sub(b).abs().masked_fill(a.eq(b).logical_or(both_nan), 0);
  scale = std::max(scale, Magnitude(expected));
  const double largest = off.max().item<double>();
  const double relative = scale > 0 ? largest / scale : largest;
  if (relative <= Tolerance(expected.scalar_type())) return std::nullopt;
  return relative;
}

ir::Graph Unsharded(ir::Graph graph) {
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) graph.ClearAnnotation(v);
  return graph;
}

// Adds every node's results that have elements to the outputs of the graph, after its own.
ir::Graph WithAllValues(ir::Graph graph) {
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    for (const int r : ResultsWithElements(graph, id)) graph.AddOutput({graph.result(id, r)});
  }
  return graph;
}

// Runs the sharded program once more with all values as results, and each op alone on the operands
// that it had there. Names the first op whose result differs. nullopt if none does: the results
// then differ by the growth of rounding (the sum of large terms that cancel may be nothing but
// rounding).
absl::StatusOr<std::optional<std::string>> NameFirst(const CompiledProgram& program,
                                                     const GraphInputs& given) {
  const ir::Graph& graph = program.traced;
  const std::shared_ptr<runtime::Backend>& backend = program.loaded->backend_ptr();
  SPMD_ASSIGN_OR_RETURN(const Tensors all, RunGraph(WithAllValues(graph), backend, given));
  Tensors values(graph.num_values());
  for (size_t k = 0; k < graph.inputs().size(); ++k) values[graph.inputs()[k]] = given.inputs[k];
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    if (graph.type(v).NumElements() == 0) values[v] = EmptyHost(graph.type(v));
  }
  size_t at = graph.outputs().size();
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const ir::Node& node = graph.node(id);
    const std::vector<int> made = ResultsWithElements(graph, id);
    if (made.empty()) continue;
    GraphInputs operands{{}, given.scalars};
    double scale = 0;
    for (const ir::ValueId v : node.operands) {
      if (v == ir::kNoValue) continue;
      operands.inputs.push_back(values[v]);
      scale = std::max(scale, Magnitude(values[v]));
    }
    const ir::Graph alone = ir::PartFor(Alone(graph, id), made).graph;
    SPMD_ASSIGN_OR_RETURN(const Tensors expected, RunGraph(alone, backend, operands));
    for (size_t k = 0; k < made.size(); ++k, ++at) {
      const ir::ValueId v = graph.result(id, made[k]);
      values[v] = all[at];
      const std::optional<double> off = Difference(all[at], expected[k], scale);
      if (!off.has_value()) continue;
      return absl::StrCat(
          "%", graph.value(v).name, ": ", graph.type(v).ToString(), " = ", node.op,
          node.source >= 0 ? absl::StrCat(" at ", graph.sources()[node.source]) : "",
          " differs by ", *off, " of its largest element");
    }
  }
  return std::nullopt;
}

// The message for a program whose results differ.
absl::Status Explained(const CompiledProgram& program, const GraphInputs& given) {
  const absl::StatusOr<std::optional<std::string>> first = NameFirst(program, given);
  if (first.ok() && !first->has_value()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "SPMD_VERIFY: program ", program.number, " is not what its ops compute unsharded: ",
      first.ok() ? **first
                 : absl::StrCat("the op at fault could not be determined (",
                                first.status().message(), ")"),
      ". This is a bug of torch_spmd; spmd.debug.save_repro(path) writes what is needed to report "
      "it"));
}

}  // namespace

absl::StatusOr<GraphInputs> RecordInputs(
    const std::vector<runtime::ExecutorQueue::Argument>& arguments,
    const std::vector<c10::Scalar>& scalars, runtime::Peers* peers) {
  GraphInputs given{{}, scalars};
  for (const auto& argument : arguments) {
    runtime::TiledTensorPtr tiles = argument.value.tiles;
    if (tiles == nullptr) {
      SPMD_ASSIGN_OR_RETURN(tiles,
                            argument.value.run->Result(argument.value.output, /*take=*/false));
    }
    SPMD_ASSIGN_OR_RETURN(at::Tensor whole, runtime::Download(*tiles, peers));
    given.inputs.push_back(std::move(whole));
  }
  return given;
}

absl::Status CompareWithUnsharded(const CompiledProgram& program, const GraphInputs& given,
                                  runtime::PendingRun& run, runtime::Peers* peers) {
  SPMD_RETURN_IF_ERROR(run.Wait());
  SPMD_ASSIGN_OR_RETURN(const Tensors expected,
                        RunGraph(Unsharded(program.traced), program.loaded->backend_ptr(), given));
  for (size_t k = 0; k < expected.size(); ++k) {
    SPMD_ASSIGN_OR_RETURN(const runtime::TiledTensorPtr tiles,
                          run.Result(static_cast<int>(k), /*take=*/false));
    SPMD_ASSIGN_OR_RETURN(const at::Tensor got, runtime::Download(*tiles, peers));
    if (Difference(got, expected[k], 0).has_value()) return Explained(program, given);
  }
  return absl::OkStatus();
}

}  // namespace spmd::trace
