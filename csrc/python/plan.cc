// SPDX-License-Identifier: Apache-2.0
// What spmd.plan reads: programs of other machines from one trace, their memory and their times.
#include <ATen/ops/empty.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/machine/system.h"
#include "csrc/program/memory_use.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/timeline/timeline.h"
#include "csrc/trace/api/replan.h"
#include "csrc/trace/api/session.h"

namespace spmd::python {
namespace {

using program::Program;
using trace::CompiledProgram;

constexpr const char* kPurposes[program::kHeldForKinds] = {"argument", "gradient", "gathered",
                                                           "activation"};

// (bytes at the peak by purpose; [(name, type, sharding, purpose, bytes, op, line), …] of what is
// live there; an int64 tensor [instructions, purposes] of the bytes after each).
py::tuple MemoryUseOf(const CompiledProgram& self) {
  const Program& program = self.program();
  const program::MemoryUse use = program::UseOfMemory(program);
  py::dict at_peak;
  for (int k = 0; k < program::kHeldForKinds; ++k) at_peak[kPurposes[k]] = use.at_peak[k];
  py::list live;
  for (const program::MemoryUse::Held& held : use.live) {
    const program::Value& value = program.values[held.value];
    std::string op = "input", line;
    if (held.maker >= 0) {
      const program::Instruction& maker = program.instructions[held.maker];
      op = maker.code == program::OpCode::kCall ? maker.op
                                                : std::string(program::OpCodeName(maker.code));
      if (maker.source >= 0) line = program.sources[maker.source];
    }
    live.append(py::make_tuple(absl::StrCat("%", value.name), value.type.ToString(),
                               value.sharding.ToString(*program.grids[value.grid]),
                               kPurposes[static_cast<int>(held.what)], held.bytes, op, line));
  }
  const auto rows = static_cast<int64_t>(use.after.size());
  at::Tensor after = at::empty({rows, program::kHeldForKinds}, at::kLong);
  auto* out = after.mutable_data_ptr<int64_t>();
  for (const auto& bytes : use.after) out = std::copy(bytes.begin(), bytes.end(), out);
  return py::make_tuple(at_peak, live, after);
}

// The totals of the timeline on a machine, and a float64 tensor [instructions, 5] of start,
// seconds, FLOPs, bytes, and whether the instruction computes.
py::dict Predicted(const CompiledProgram& self, const std::string& on) {
  const machine::System system = ValueOrThrow(machine::ParseSystem(on));
  const timeline::Timeline times = ValueOrThrow(timeline::Predict(self.program(), system));
  at::Tensor entries = at::empty({static_cast<int64_t>(times.entries.size()), 5}, at::kDouble);
  auto* out = entries.mutable_data_ptr<double>();
  for (const timeline::Entry& e : times.entries) {
    for (const double x : {e.start, e.seconds, e.flops, e.bytes, e.stream == 0 ? 1.0 : 0.0}) {
      *out++ = x;
    }
  }
  py::dict result;
  result["machine"] = system.name;
  result["placement"] = times.placement;
  result["devices"] = times.devices;
  result["machine_devices"] = system.num_devices();
  result["memory_bytes"] = system.device.memory_bytes;
  result["memory_bandwidth"] = system.device.memory_bandwidth;
  result["peak_flops"] = times.peak_flops;
  result["efficiency"] = system.efficiency;
  result["seconds"] = times.seconds;
  result["exposed_seconds"] = times.exposed_seconds();
  result["model_flops"] = times.model_flops;
  result["hardware_flops"] = times.hardware_flops;
  result["entries"] = entries;
  return result;
}

// Ends when it is closed or dropped.
struct PlanningScope {
  std::unique_ptr<trace::OtherBackend> other;
};

}  // namespace

void init_plan(py::module& m) {
  py::class_<PlanningScope>(m, "PlanningScope")
      .def(py::init([](const std::string& backend) {
             return PlanningScope{ValueOrThrow(trace::OtherBackend::Use(backend))};
           }),
           py::arg("backend"))
      .def("close", [](PlanningScope& self) { self.other.reset(); });
  m.def(
      "replan",
      [](const CompiledProgram& traced, const Mesh& mesh, const std::string& machine) {
        const machine::System system = ValueOrThrow(machine::ParseSystem(machine));
        return ValueOrThrow(trace::Replan(traced, mesh, system.device));
      },
      py::arg("traced"), py::arg("mesh"), py::arg("machine"));
  m.def("memory_use", &MemoryUseOf, py::arg("program"));
  m.def("predicted", &Predicted, py::arg("program"), py::arg("on"));
}

}  // namespace spmd::python
