// SPDX-License-Identifier: Apache-2.0
// Traces a step without data, and says what it takes on a machine under other marks of its inputs.
#include <string>
#include <utility>
#include <vector>

#include "csrc/machine/system.h"
#include "csrc/partition/compile_many.h"
#include "csrc/partition/plan_memo.h"
#include "csrc/program/analysis.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/python/spec.h"
#include "csrc/timeline/timeline.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/pending_work.h"
#include "csrc/trace/run/traced_graph.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::python {
namespace {

using trace::SessionLock;
using trace::ShapeOnly;
using trace::TracedGraph;

ShapeOnly MakeShapeOnly(const at::Tensor& like) {
  const SessionLock lock;
  return trace::MakeShapeOnly(like.scalar_type(), like.sizes());
}

TracedGraph Trace(const std::vector<ShapeOnly>& inputs, const std::vector<at::Tensor>& results,
                  const Mesh& mesh, const std::vector<std::pair<int, int>>& parameters) {
  std::vector<trace::TracedParameter> checked;
  for (const auto& [input, gradient] : parameters) {
    TORCH_CHECK(0 <= input && input < std::ssize(inputs) && gradient < std::ssize(results),
                "trace: no input ", input, ", or no result ", gradient);
    checked.push_back({input, gradient});
  }
  SessionLock lock;
  return ValueOrThrow(trace::TraceGraph(*lock, inputs, results, mesh, checked));
}

// (key, meshes, (number, sizes, bytes) of each free input); None if nothing is pending.
py::object FindPendingWork() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  const trace::PendingWork work = trace::FindPendingWork(*lock);
  if (work.empty) return py::none();
  py::list free;
  for (const auto& [number, type] : work.free) {
    free.append(py::make_tuple(
        number, py::tuple(py::cast(std::vector<int64_t>(type.dims.begin(), type.dims.end()))),
        type.ByteSize()));
  }
  return py::make_tuple(py::make_tuple(work.key.hi(), work.key.lo()), work.meshes, free);
}

TracedGraph TracePending(const Mesh& mesh) {
  SessionLock lock;
  return ValueOrThrow(trace::TracePending(*lock, mesh));
}

void MarkPending(const Mesh& mesh, const std::vector<std::pair<int, py::object>>& marks) {
  std::vector<std::pair<int, PartitionSpec>> specs;
  for (const auto& [input, spec] : marks) specs.emplace_back(input, ToSpec(spec, mesh));
  SessionLock lock;
  ThrowIfError(trace::MarkPending(*lock, mesh, specs));
}

// A machine, and what compilations for it remember.
struct Pricing {
  explicit Pricing(const std::string& on)
      : system(ValueOrThrow(machine::ParseSystem(on))),
        moves(partition::SearchPrices(system.device)) {}

  const machine::System system;
  partition::MoveMemo moves;
};

// The program on the machine, where the inputs of these numbers are sharded by these specs.
// `memory_limit` as in CompileOptions.
py::dict Price(Pricing& pricing, const TracedGraph& traced,
               const std::vector<std::pair<int, py::object>>& marks, int64_t memory_limit) {
  std::vector<std::pair<int, PartitionSpec>> specs;
  specs.reserve(marks.size());
  for (const auto& [input, spec] : marks) specs.emplace_back(input, ToSpec(spec, traced.mesh));
  const machine::System& system = pricing.system;
  partition::CompileOptions options;
  options.machine = &system.device;
  options.memory_limit = memory_limit;
  const SessionLock lock;  // users may register rules on other threads
  const ir::Graph graph = ValueOrThrow(traced.Marked(specs));
  const program::Program program =
      ValueOrThrow(partition::Compile(graph, options, pricing.moves)).program;
  const timeline::Timeline times = ValueOrThrow(timeline::Predict(program, system));
  const program::MemoryReport memory = program::PeakMemory(program);
  int64_t wire_bytes = 0;
  for (const program::Traffic& t : program::CollectiveTraffic(program)) wire_bytes += t.wire_bytes;
  py::dict price;
  price["seconds"] = times.seconds;
  price["exposed_seconds"] = times.exposed_seconds();
  price["mfu"] = times.mfu();
  price["placement"] = times.placement;
  price["peak_bytes"] = memory.peak_bytes;
  price["input_bytes"] = memory.input_bytes;
  price["wire_bytes"] = wire_bytes;
  return price;
}

py::dict Machine(const std::string& name) {
  const machine::System system = ValueOrThrow(machine::ParseSystem(name));
  py::dict result;
  result["name"] = system.name;
  result["devices"] = system.num_devices();
  result["memory_bytes"] = system.device.memory_bytes;
  return result;
}

}  // namespace

void init_candidates(py::module& m) {
  py::class_<ShapeOnly>(m, "ShapeOnly").def_readonly("tensor", &ShapeOnly::tensor);
  py::class_<TracedGraph>(m, "TracedGraph")
      // That which it was traced for, and those of the marks in it.
      .def("meshes", [](const TracedGraph& traced) { return traced.meshes.meshes; })
      .def("num_nodes", [](const TracedGraph& traced) { return traced.graph.num_nodes(); })
      .def("text", [](const TracedGraph& traced) { return traced.graph.ToString(); });
  py::class_<Pricing>(m, "Pricing")
      .def(py::init<const std::string&>(), py::arg("on"))
      .def("price", &Price, py::arg("graph"), py::arg("marks"), py::arg("memory_limit") = 0)
      .def("num_moves", [](const Pricing& pricing) { return pricing.moves.size(); });
  m.def("shape_only", &MakeShapeOnly, py::arg("like"));
  m.def("trace", &Trace, py::arg("inputs"), py::arg("results"), py::arg("mesh"),
        py::arg("parameters") = std::vector<std::pair<int, int>>());
  m.def("pending_work", &FindPendingWork);
  m.def("trace_pending", &TracePending, py::arg("mesh"));
  m.def("mark_pending", &MarkPending, py::arg("mesh"), py::arg("marks"));
  m.def(
      "read_by_pending",
      [](const at::Storage& storage) {
        SessionLock lock;
        return trace::IsReadByPending(*lock, storage);
      },
      py::arg("storage"));
  m.def("machine", &Machine, py::arg("name"));
}

}  // namespace spmd::python
