// SPDX-License-Identifier: Apache-2.0
// Runs pending calls one by one, whole and on tiles, and gives what their rules claim, so that
// rules can be checked.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/rules/registry.h"
#include "csrc/trace/api/session.h"

namespace spmd::python {
namespace {

using trace::PendingCalls;

using Tensors = std::vector<std::optional<at::Tensor>>;
// For each tensor a tile: [begin, end) of each dimension; nullopt for an absent tensor.
using Tiles = std::vector<std::optional<std::vector<std::pair<int64_t, int64_t>>>>;

const ir::Node& NodeAt(const PendingCalls& calls, int id) {
  if (id < 0 || id >= calls.graph.num_nodes()) throw py::index_error();
  return calls.graph.node(id);
}

// The inputs as pairs (value, tensor).
std::vector<std::pair<ir::ValueId, at::Tensor>> Inputs(const PendingCalls& calls) {
  std::vector<std::pair<ir::ValueId, at::Tensor>> inputs;
  for (size_t k = 0; k < calls.given.inputs.size(); ++k) {
    inputs.emplace_back(calls.graph.inputs()[k], calls.given.inputs[k]);
  }
  return inputs;
}

// The tuple (op, text, values of the operands, values of the results).
py::tuple CallAt(const PendingCalls& calls, int id) {
  const ir::Node& node = NodeAt(calls, id);
  py::list operands, results;
  for (const ir::ValueId v : node.operands) {
    operands.append(v == ir::kNoValue ? py::object(py::none()) : py::int_(v));
  }
  for (int r = 0; r < node.num_results; ++r) results.append(node.first_result + r);
  return py::make_tuple(node.op, rules::OpCall::Of(calls.graph, node).ToString(), operands,
                        results);
}

py::list Lists(const std::vector<rules::TensorFactors>& tensors) {
  py::list lists;
  for (const rules::TensorFactors& tensor : tensors) {
    py::list dims;
    for (const rules::DimFactors& dim : tensor) {
      dims.append(std::vector<int>(dim.begin(), dim.end()));
    }
    lists.append(dims);
  }
  return lists;
}

// The factors in the form that _C.pyi describes; None for an op without a rule.
py::object FactorsAt(const PendingCalls& calls, int id) {
  const rules::OpCall call = rules::OpCall::Of(calls.graph, NodeAt(calls, id));
  const rules::Rule* rule = rules::Find(call.op);
  if (rule == nullptr) return py::none();
  const rules::OpFactors found = ValueOrThrow(rules::FactorsOf(*rule, call));
  py::list factors, windows;
  for (const rules::Factor& f : found.factors) {
    factors.append(py::make_tuple(
        f.size, f.whole,
        std::string(ReduceKindName(f.reduce).data(), ReduceKindName(f.reduce).size()),
        f.granularity));
  }
  for (const rules::Window& w : found.windows) {
    std::vector<std::pair<int64_t, int64_t>> order;
    for (const Interval& part : w.order) order.emplace_back(part.begin, part.end);
    windows.append(py::make_tuple(w.operand, w.dim, w.factor, w.fill, order));
  }
  std::vector<bool> same;
  for (size_t r = 0; r < found.results.size(); ++r) {
    same.push_back(found.SameInShards(static_cast<int>(r)));
  }
  py::dict each, jointly;
  for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax, ReduceKind::kMin}) {
    const rules::Linearity linear = rules::LinearityOf(*rule, call, kind);
    const py::str name(ReduceKindName(kind).data(), ReduceKindName(kind).size());
    each[name] = std::vector<int>(linear.each.begin(), linear.each.end());
    jointly[name] = std::vector<int>(linear.jointly.begin(), linear.jointly.end());
  }
  py::dict out;
  out["factors"] = factors;
  out["windows"] = windows;
  out["operands"] = Lists(found.operands);
  out["results"] = Lists(found.results);
  out["same"] = same;
  out["added"] = rule->added;
  out["each"] = each;
  out["jointly"] = jointly;
  return out;
}

// The interval that a window spans over the shard [begin, end) of its factor.
std::pair<int64_t, int64_t> WindowOver(const PendingCalls& calls, int id, int window, int64_t begin,
                                       int64_t end) {
  const rules::OpCall call = rules::OpCall::Of(calls.graph, NodeAt(calls, id));
  const rules::Rule* rule = rules::Find(call.op);
  if (rule == nullptr) throw py::value_error("an op without a rule has no windows");
  const rules::OpFactors found = ValueOrThrow(rules::FactorsOf(*rule, call));
  const rules::Window& w = found.windows.at(window);
  Expr::Env env;
  env.start = [&](TensorRef, int) { return begin; };
  env.size = [&](TensorRef, int) { return end - begin; };
  env.extent = [&](TensorRef, int) { return w.extent; };
  return {w.begin.Evaluate(env), w.end.Evaluate(env)};
}

std::vector<Box> Boxes(const Tiles& tiles) {
  std::vector<Box> boxes;
  for (const auto& tile : tiles) {
    Box& box = boxes.emplace_back();
    if (!tile.has_value()) continue;
    for (const auto& [begin, end] : *tile) box.push_back({begin, end});
  }
  return boxes;
}

std::vector<at::Tensor> Run(const PendingCalls& calls, const ir::Graph& graph,
                            const Tensors& operands) {
  trace::GraphInputs given{{}, calls.given.scalars};
  for (const auto& t : operands) {
    if (t.has_value()) given.inputs.push_back(*t);
  }
  const py::gil_scoped_release no_gil;  // the op may be written in Python
  return ValueOrThrow(trace::RunGraph(graph, calls.backend, given));
}

std::vector<at::Tensor> RunWhole(const PendingCalls& calls, int id, const Tensors& operands) {
  NodeAt(calls, id);
  return Run(calls, trace::Alone(calls.graph, id), operands);
}

std::vector<at::Tensor> RunTile(const PendingCalls& calls, int id, const Tensors& operands,
                                const std::vector<bool>& cut, const Tiles& operand_tiles,
                                const Tiles& result_tiles) {
  NodeAt(calls, id);
  const trace::CallTiles tiles{cut, Boxes(operand_tiles), Boxes(result_tiles)};
  return Run(calls, ValueOrThrow(trace::AloneOnTiles(calls.graph, id, tiles)), operands);
}

}  // namespace

void init_calls(py::module& m) {
  py::class_<PendingCalls>(m, "PendingCalls")
      .def("__len__", [](const PendingCalls& calls) { return calls.graph.num_nodes(); })
      .def("inputs", &Inputs)
      .def("call", &CallAt, py::arg("id"))
      .def("factors", &FactorsAt, py::arg("id"))
      .def("window", &WindowOver, py::arg("id"), py::arg("window"), py::arg("begin"),
           py::arg("end"))
      .def("run", &RunWhole, py::arg("id"), py::arg("operands"))
      .def("run_tile", &RunTile, py::arg("id"), py::arg("operands"), py::arg("cut"),
           py::arg("operand_tiles"), py::arg("result_tiles"));
  m.def("pending_calls", [] { return ValueOrThrow(trace::Session::Get().Calls()); });
}

}  // namespace spmd::python
