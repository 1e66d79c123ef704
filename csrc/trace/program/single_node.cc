// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/single_node.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "csrc/ir/evaluate.h"
#include "csrc/ir/part.h"
#include "csrc/partition/compile.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/executor.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

ir::Graph OneNode(const ir::Graph& graph, ir::NodeId id, Attributes attributes,
                  absl::Span<const TensorType> operands, absl::Span<const TensorType> results) {
  ir::Graph alone;
  for (const ir::ScalarKind kind : graph.scalars()) alone.AddScalar(kind);
  const ir::Node& node = graph.node(id);
  ir::Graph::NodeSpec spec;
  spec.op = node.op;
  spec.groups = node.groups;
  spec.attributes = std::move(attributes);
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const bool absent = node.operands[k] == ir::kNoValue;
    spec.operands.push_back(absent ? ir::kNoValue : alone.AddInput(operands[k], ""));
  }
  const ir::NodeId copy = alone.AddNode(std::move(spec), results);
  for (int r = 0; r < node.num_results; ++r) alone.AddOutput({alone.result(copy, r)});
  return alone;
}

std::vector<TensorType> OperandTypes(const ir::Graph& graph, const ir::Node& node) {
  std::vector<TensorType> types;
  for (const ir::ValueId v : node.operands) {
    types.push_back(v == ir::kNoValue ? TensorType{} : graph.type(v));
  }
  return types;
}

std::vector<TensorType> ResultTypes(const ir::Graph& graph, const ir::Node& node) {
  std::vector<TensorType> types;
  for (int r = 0; r < node.num_results; ++r) types.push_back(graph.type(node.first_result + r));
  return types;
}

// The values of the variables in the expressions of a call's attributes, on these tiles.
Expr::Env EnvOf(const rules::OpCall& call, const CallTiles& tiles) {
  const auto interval = [&tiles](TensorRef t, int d) {
    return (t.kind == TensorRef::Kind::kOperand ? tiles.operands : tiles.results)[t.index][d];
  };
  Expr::Env env;
  env.start = [interval](TensorRef t, int d) { return interval(t, d).begin; };
  env.size = [interval](TensorRef t, int d) { return interval(t, d).size(); };
  env.extent = [&call](TensorRef t, int d) {
    return t.kind == TensorRef::Kind::kOperand ? call.operand(t.index).dims[d]
                                               : call.results[t.index].dims[d];
  };
  env.coord = [](int) { return int64_t{0}; };
  return env;
}

}  // namespace

absl::StatusOr<std::vector<at::Tensor>> RunGraph(const ir::Graph& graph,
                                                 const std::shared_ptr<runtime::Backend>& backend,
                                                 const GraphInputs& given) {
  partition::CompileOptions options;
  options.machine = &backend->machine();
  options.verify = true;
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled, partition::Compile(graph, options));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::LoadedProgram> loaded,
                        runtime::LoadedProgram::Load(std::move(compiled.program), backend));
  std::vector<runtime::LoadedProgram::Argument> arguments;
  for (size_t k = 0; k < given.inputs.size(); ++k) {
    const program::ValueId v = loaded->program().inputs[k].value;
    arguments.push_back(
        {runtime::Upload(given.inputs[k], loaded->program().LayoutOf(v), *backend), false});
  }
  SPMD_ASSIGN_OR_RETURN(std::vector<runtime::TiledTensorPtr> results,
                        loaded->Run(std::move(arguments), given.scalars));
  std::vector<at::Tensor> out;
  for (const runtime::TiledTensorPtr& r : results) {
    SPMD_ASSIGN_OR_RETURN(at::Tensor whole, runtime::Download(*r, backend->peers()));
    out.push_back(std::move(whole));
  }
  return out;
}

ir::Graph Alone(const ir::Graph& graph, ir::NodeId id) {
  ir::Graph alone = ir::EmptyLike(graph, ir::Grids::kLeftOut);
  const ir::Node& node = graph.node(id);
  std::vector<ir::ValueId> operands;
  for (const ir::ValueId v : node.operands) {
    operands.push_back(v == ir::kNoValue ? v : alone.AddInput(graph.type(v), ""));
  }
  const ir::NodeId copy = ir::CopyNode(graph, node, operands, alone);
  for (int r = 0; r < node.num_results; ++r) alone.AddOutput({alone.result(copy, r)});
  return alone;
}

std::vector<int> ResultsWithElements(const ir::Graph& graph, ir::NodeId id) {
  std::vector<int> results;
  for (int r = 0; r < graph.node(id).num_results; ++r) {
    if (graph.type(graph.result(id, r)).NumElements() > 0) results.push_back(r);
  }
  return results;
}

at::Tensor EmptyHost(const TensorType& type) {
  const runtime::DispatchGuard guard;
  return at::empty(at::IntArrayRef(type.dims.data(), type.dims.size()),
                   at::TensorOptions(runtime::ToScalarType(type.dtype)));
}

absl::StatusOr<ir::Graph> AloneOnTiles(const ir::Graph& graph, ir::NodeId id,
                                       const CallTiles& tiles) {
  const ir::Node& node = graph.node(id);
  const rules::Rule* rule = rules::Find(node.op);
  SPMD_CHECK(rule != nullptr, node.op, " has no rule");
  const rules::OpCall call = rules::OpCall::Of(graph, node);
  Attributes attributes = node.attributes;
  if (rule->local != nullptr) {
    SPMD_ASSIGN_OR_RETURN(const rules::OpFactors factors, rules::FactorsOf(*rule, call));
    attributes = rule->local(call, factors, tiles.cut);
  }
  for (const auto& [name, value] : rule->local_attributes) attributes.Set(name, value);
  std::vector<TensorType> operands = OperandTypes(graph, node);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (call.has(static_cast<int>(k))) operands[k].dims = BoxDims(tiles.operands[k]);
  }
  std::vector<TensorType> results = ResultTypes(graph, node);
  for (size_t r = 0; r < results.size(); ++r) results[r].dims = BoxDims(tiles.results[r]);
  return OneNode(graph, id, Evaluated(attributes, EnvOf(call, tiles)), operands, results);
}

}  // namespace spmd::trace
