// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/timeline.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/machine/system.h"
#include "csrc/python/errors.h"
#include "csrc/timeline/timeline.h"

namespace spmd::python {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;

// A machine that is not in the tables is taken to be a ring of the program's devices.
machine::System SystemOf(const runtime::Backend& backend, const Program& program) {
  absl::StatusOr<machine::System> known = machine::ParseSystem(backend.machine().name);
  if (known.ok() && known->num_devices() == backend.num_devices()) return *std::move(known);
  int64_t devices = 1;
  for (const GridPtr& grid : program.grids) devices = std::max(devices, grid->num_devices());
  return machine::OneRing(backend.machine(), devices);
}

py::tuple EntryOf(const Program& program, const timeline::Timeline& times,
                  const timeline::Entry& entry) {
  const Instruction& i = program.instructions[entry.instruction];
  return py::make_tuple(
      i.code == OpCode::kCall ? i.op : std::string(program::OpCodeName(i.code)),
      i.results.empty() ? "" : absl::StrCat("%", program.values[i.results[0]].name),
      times.streams[entry.stream], entry.start, entry.seconds, entry.flops, entry.bytes,
      entry.recomputed, i.source < 0 ? "" : program.sources[i.source]);
}

}  // namespace

py::dict TimelineOf(const trace::CompiledProgram& compiled, const std::optional<std::string>& on,
                    std::optional<double> efficiency) {
  const Program& program = compiled.program();
  machine::System system = on.has_value()
                               ? ValueOrThrow(machine::ParseSystem(*on))
                               : SystemOf(*ValueOrThrow(trace::Session::Get().backend()), program);
  if (efficiency.has_value()) system.efficiency = *efficiency;
  const timeline::Timeline times = ValueOrThrow(timeline::Predict(program, system));
  py::list entries;
  for (const timeline::Entry& entry : times.entries) {
    entries.append(EntryOf(program, times, entry));
  }
  py::dict result;
  result["machine"] = system.name;
  result["streams"] = times.streams;
  result["entries"] = entries;
  result["placement"] = times.placement;
  result["device_order"] = times.device_order;
  result["devices"] = times.devices;
  result["seconds"] = times.seconds;
  result["compute_seconds"] = times.compute_seconds;
  result["peak_flops"] = times.peak_flops;
  result["model_flops"] = times.model_flops;
  result["hardware_flops"] = times.hardware_flops;
  return result;
}

}  // namespace spmd::python
