// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/known_values.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/part.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/program/single_node.h"
#include "csrc/trace/run/lost_steps.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// An upload of more bytes is not kept.
constexpr int64_t kMostUploaded = int64_t{64} << 20;
// What takes values of more bytes in all is not computed.
constexpr int64_t kMostBytes = int64_t{256} << 20;
// A value that is computed from the last one of the same kind, run by run, is computed after so
// many runs, so that what is kept does not grow.
constexpr int kDeepest = 16;

// What `wanted` depends on, as a graph without meshes and marks. `inputs` gets the numbers of the
// inputs of `whole` that it takes.
ir::Graph GraphOf(const ir::Graph& whole, ir::ValueId wanted, std::vector<int>& inputs) {
  std::vector<bool> needed(whole.num_values());
  needed[wanted] = true;
  const auto is_needed = [&](const ir::Node& node) {
    const auto first = needed.begin() + node.first_result;
    return std::find(first, first + node.num_results, true) != first + node.num_results;
  };
  for (ir::NodeId id = whole.num_nodes(); id-- > 0;) {
    if (!is_needed(whole.node(id))) continue;
    for (const ir::ValueId v : whole.node(id).operands) {
      if (v != ir::kNoValue) needed[v] = true;
    }
  }
  ir::Graph graph = ir::EmptyLike(whole, ir::Grids::kLeftOut);
  std::vector<ir::ValueId> value_of(whole.num_values(), ir::kNoValue);
  for (size_t k = 0; k < whole.inputs().size(); ++k) {
    const ir::ValueId v = whole.inputs()[k];
    if (!needed[v]) continue;
    value_of[v] = graph.AddInput(whole.type(v), "");
    inputs.push_back(static_cast<int>(k));
  }
  for (const ir::Node& node : whole.nodes()) {
    if (!is_needed(node)) continue;
    std::vector<ir::ValueId> operands;
    for (const ir::ValueId v : node.operands) {
      operands.push_back(v == ir::kNoValue ? ir::kNoValue : value_of[v]);
    }
    const ir::NodeId copy = ir::CopyNode(whole, node, operands, graph);
    for (int r = 0; r < node.num_results; ++r) {
      value_of[node.first_result + r] = graph.result(copy, r);
    }
  }
  graph.AddOutput({value_of[wanted]});
  return graph;
}

int64_t BytesOf(const ir::Graph& graph) {
  int64_t bytes = 0;
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    bytes += graph.type(v).NumElements() * ByteSize(graph.type(v).dtype);
  }
  return bytes;
}

// Computes `known.host`.
// Errors: ResourceExhausted if that takes too much memory; those of the ops.
absl::Status Compute(Known& known) {
  if (known.host.defined()) return absl::OkStatus();
  const ir::Graph& whole = known.run->program->traced;
  std::vector<int> inputs;
  const ir::Graph graph = GraphOf(whole, whole.outputs()[known.output].value, inputs);
  if (BytesOf(graph) > kMostBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("takes ", BytesOf(graph) >> 20, " MiB to compute, more than the ",
                     kMostBytes >> 20, " that a planning backend spends on one value"));
  }
  GraphInputs given{{}, known.run->scalars};
  for (const int k : inputs) {
    SPMD_RETURN_IF_ERROR(Compute(*known.run->inputs[k]));
    given.inputs.push_back(known.run->inputs[k]->host);
  }
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> host,
                        runtime::MakeBackend("cpu", 1));
  SPMD_ASSIGN_OR_RETURN(const std::vector<at::Tensor> results, RunGraph(graph, host, given));
  known.host = results[0];
  known.run = nullptr;
  known.depth = 0;
  return absl::OkStatus();
}

// By value of the graph, whether it is known.
std::vector<bool> KnownIn(const ir::Graph& graph, const std::vector<KnownPtr>& inputs) {
  std::vector<bool> known(graph.num_values());
  for (size_t k = 0; k < inputs.size(); ++k) known[graph.inputs()[k]] = inputs[k] != nullptr;
  for (const ir::Node& node : graph.nodes()) {
    const bool from_known =
        std::all_of(node.operands.begin(), node.operands.end(),
                    [&](ir::ValueId v) { return v == ir::kNoValue || known[v]; });
    if (!from_known) continue;
    const rules::Rule* const rule = rules::Find(node.op);
    if (rule != nullptr && rule->random) continue;
    std::fill_n(known.begin() + node.first_result, node.num_results, true);
  }
  return known;
}

// What a value is: "aten::gt.Scalar at train.py:12".
std::string Described(const Value& value) {
  const std::shared_ptr<const CompiledProgram> program = value.origin.lock();
  if (program == nullptr || value.origin_output < 0) {
    return absl::StrCat("an uploaded tensor, ", value.type.ToString());
  }
  const ir::Graph& graph = program->traced;
  const ir::Value& made = graph.value(graph.outputs()[value.origin_output].value);
  if (made.producer == ir::kNoNode) return absl::StrCat("an input, ", value.type.ToString());
  const ir::Node& node = graph.node(made.producer);
  return node.source < 0 ? node.op : absl::StrCat(node.op, " at ", graph.sources()[node.source]);
}

std::string LineOf(const std::string& described) {
  const size_t at = described.find(" at ");
  return at == std::string::npos ? "" : described.substr(at + 4);
}

std::string OpOf(const std::string& described) {
  return described.substr(0, described.find_first_of(" ,"));
}

at::Tensor Filled(const TensorType& type, double number) {
  const runtime::DispatchGuard guard;
  return at::full(at::IntArrayRef(type.dims.data(), type.dims.size()), number,
                  at::TensorOptions(runtime::ToScalarType(type.dtype)));
}

bool IsNumber(const TensorType& type) {
  const c10::ScalarType dtype = runtime::ToScalarType(type.dtype);
  return type.NumElements() == 1 && (c10::isFloatingType(dtype) || c10::isComplexType(dtype));
}

}  // namespace

KnownPtr KnownUpload(const at::Tensor& host) {
  const bool is_data = host.is_floating_point() || host.is_complex();
  const bool keep =
      is_data ? host.numel() <= 1 : static_cast<int64_t>(host.nbytes()) <= kMostUploaded;
  return keep ? std::make_shared<Known>(Known{.host = host}) : nullptr;
}

void NoteKnown(const Tape& tape, const CachedProgram& program,
               const std::vector<c10::Scalar>& scalars, const std::vector<ValuePtr>& results) {
  const ir::Graph& graph = program.program->traced;
  auto run = std::make_shared<KnownRun>(KnownRun{program.program, scalars, {}});
  int depth = 0;
  for (const int input : program.inputs) {
    KnownPtr known = tape.value(tape.inputs()[input].id)->known;
    if (known != nullptr && known->depth >= kDeepest && !Compute(*known).ok()) known = nullptr;
    if (known != nullptr) depth = std::max(depth, known->depth);
    run->inputs.push_back(std::move(known));
  }
  const std::vector<bool> known = KnownIn(graph, run->inputs);
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    if (!known[graph.outputs()[k].value]) continue;
    results[k]->known = std::make_shared<Known>(Known{{}, run, static_cast<int>(k), depth + 1});
  }
}

bool IsKnown(Value& value) { return value.known != nullptr && Compute(*value.known).ok(); }

absl::StatusOr<at::Tensor> ReadPlanned(SessionState& state, Value& value, const char* why) {
  absl::Status computed = absl::OkStatus();
  if (value.known != nullptr) {
    computed = Compute(*value.known);
    if (computed.ok()) {
      const runtime::DispatchGuard guard;
      const Dims& dims = value.type.dims;
      return value.known->host.reshape(at::IntArrayRef(dims.data(), dims.size()));
    }
  }
  const std::string described = Described(value);
  const std::string here = state.hooks.current_line != nullptr ? state.hooks.current_line() : "";
  for (const auto& [text, number] : state.answers) {
    if (absl::StrContains(absl::StrCat(described, " ", here), text)) {
      return Filled(value.type, number);
    }
  }
  LeaveSteps(state);
  if (!state.optimizer_steps.open.empty() && IsNumber(value.type)) return Filled(value.type, 1);
  const std::string line = here.empty() ? LineOf(described) : here;
  const bool is_bool = value.type.dtype == DType::kBool;
  return absl::FailedPreconditionError(
      absl::StrCat(why, line.empty() ? "" : absl::StrCat(" at ", line), " asks for the value of ",
                   described, ", which ",
                   computed.ok() ? "depends on data, and a planning backend has shapes only"
                                 : std::string(computed.message()),
                   ". Say what it is: with spmd.planning.assume({'",
                   line.empty() ? OpOf(described) : line, "': ", is_bool ? "True" : "1",
                   "}): … ; or drop ':plan' from the backend's name to compute it"));
}

}  // namespace spmd::trace
