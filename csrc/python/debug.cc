// SPDX-License-Identifier: Apache-2.0
// What spmd.debug shows, as plain tuples and text; Python lays out the tables.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/program/terms.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/python/timeline.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/placement.h"
#include "csrc/trace/api/session.h"

namespace spmd::python {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using trace::CompiledProgram;
using trace::Session;

py::str ToStr(absl::string_view text) { return py::str(text.data(), text.size()); }

// By instruction: what computed the values that it moves: an op, a move, or "input".
std::vector<std::string> Producers(const Program& program) {
  const program::DefUse facts(program);
  std::vector<std::string> producers;
  for (const Instruction& instruction : program.instructions) {
    std::string& producer = producers.emplace_back();
    if (!instruction.operands.empty()) {
      const program::ValueId moved = instruction.operands[0];
      const int by = moved < 0 ? -1 : facts.maker(moved);
      const Instruction* const maker = by < 0 ? nullptr : &program.instructions[by];
      producer = maker == nullptr               ? "input"
                 : maker->code == OpCode::kCall ? maker->op
                                                : std::string(OpCodeName(maker->code));
    }
  }
  return producers;
}

// The bytes that this process sends to others for a move. Requires: the backend has peers.
int64_t SentBytes(const Program& program, const Instruction& move, const runtime::Backend& backend,
                  runtime::PlacementCache& placements) {
  int64_t sent = 0;
  for (size_t k = 0; k < move.results.size(); ++k) {
    const program::Value& from = program.values[move.operands[k]];
    const runtime::MovePlan plan = runtime::MovePlan::Make(
        *placements.Of(move.operands[k]), *placements.Of(move.results[k]), backend,
        runtime::RoundsOnce(from.sharding.reduce_kind, from.type.dtype));
    sent += plan.transfer.num_sent(backend.peers()->rank()) *
            ByteSize(program::HeldType(from.type.dtype, from.sharding));
  }
  return sent;
}

// One tuple per collective: (kind, axes, devices per group, values merged, bytes, bytes on the
// wire, op, line, bytes that this process sends to others).
py::list Collectives(const CompiledProgram& self) {
  const Program& program = self.program();
  const auto backend = ValueOrThrow(Session::Get().backend());
  runtime::PlacementCache placements(program, /*per_position=*/false,
                                     backend->homes().devices_per_process);
  const std::vector<std::string> producers = Producers(program);
  py::list rows;
  for (const program::Traffic& t : program::CollectiveTraffic(program)) {
    const Instruction& instruction = program.instructions[t.instruction];
    int grid = instruction.operands.empty() ? 0 : program.values[instruction.operands[0]].grid;
    rows.append(py::make_tuple(
        ToStr(OpCodeName(t.code)), program.grids[grid]->AxesToString(t.axes), t.group_size, t.count,
        t.payload_bytes, t.wire_bytes, producers[t.instruction], t.source,
        backend->peers() == nullptr ? 0 : SentBytes(program, instruction, *backend, placements)));
  }
  return rows;
}

// The tuple (peak, bytes of inputs, bytes of outputs, where, [(name, type, sharding, bytes, line),
// …]).
py::tuple Memory(const CompiledProgram& self) {
  const Program& program = self.program();
  program::MemoryReport report = program::PeakMemory(program);
  const program::DefUse facts(program);
  py::list live;
  for (const program::LiveValue& l : report.live) {
    const program::Value& value = program.values[l.value];
    const int maker = facts.maker(l.value);
    const int32_t source = maker < 0 ? -1 : program.instructions[maker].source;
    live.append(py::make_tuple(absl::StrCat("%", value.name), value.type.ToString(),
                               value.sharding.ToString(*program.grids[value.grid]), l.bytes,
                               source < 0 ? "" : program.sources[source]));
  }
  std::string where = "at the start";
  if (report.instruction >= 0) {
    const Instruction& at = program.instructions[report.instruction];
    where = at.code == OpCode::kCall ? at.op : std::string(OpCodeName(at.code));
    if (at.source >= 0) absl::StrAppend(&where, " at ", program.sources[at.source]);
  }
  return py::make_tuple(report.peak_bytes, report.input_bytes, report.output_bytes, where, live);
}

// The tuple (bytes on the wire, peak without, [(name, how, bytes, line), …]) of what is made again
// because memory is short.
py::tuple MadeAgain(const CompiledProgram& self) {
  const Program& program = self.program();
  const partition::GatheredAgain& again = self.compiled.gathered_again;
  const std::vector<int64_t> bytes = program::HeldBytes(program);
  const program::DefUse facts(program);
  py::list values;
  for (const program::ValueId v : again.values) {
    const Instruction& maker = program.instructions[facts.maker(v)];
    const int32_t source = maker.source;
    values.append(py::make_tuple(absl::StrCat("%", program.values[v].name),
                                 maker.code == OpCode::kCall ? "computed" : "gathered", bytes[v],
                                 source < 0 ? "" : program.sources[source]));
  }
  return py::make_tuple(again.wire_bytes, again.bytes_before, values);
}

py::list PassTimes(const std::shared_ptr<CompiledProgram>& self) {
  py::list rows;
  for (const auto& time : ValueOrThrow(Session::Get().PassTimes(self))) {
    rows.append(py::make_tuple(time.pass, time.ms));
  }
  return rows;
}

py::dict Sizes() {
  py::dict sizes;
  for (const auto& [name, size] : Session::Get().Sizes()) sizes[py::str(name)] = size;
  return sizes;
}

// One tuple per compilation: (program, reason, cut, records, instructions, ms to lower, compile,
// load).
py::list CompileEvents() {
  py::list rows;
  for (const trace::CompileEvent& e : Session::Get().CompileEvents()) {
    rows.append(py::make_tuple(e.number, e.reason, e.cut, e.records, e.instructions, e.lower_ms,
                               e.compile_ms, e.load_ms));
  }
  return rows;
}

}  // namespace

void init_debug(py::module& m) {
  py::class_<CompiledProgram, std::shared_ptr<CompiledProgram>>(m, "CompiledProgram")
      .def_readonly("number", &CompiledProgram::number)
      .def("traced_text", [](const CompiledProgram& self) { return self.traced.ToString(); })
      .def("graph_text",
           [](const std::shared_ptr<CompiledProgram>& self) {
             return ValueOrThrow(Session::Get().GraphText(self));
           })
      .def_property_readonly("heap_bytes", &CompiledProgram::HeapBytes)
      .def("program_text", [](const CompiledProgram& self) { return self.program().ToString(); })
      .def("collectives", &Collectives)
      .def("memory", &Memory)
      .def("made_again", &MadeAgain)
      .def_property_readonly("refused",
                             [](const CompiledProgram& self) { return self.loaded == nullptr; })
      .def("timeline", &TimelineOf, py::arg("on"), py::arg("efficiency"))
      .def_property_readonly("decomposed",
                             [](const CompiledProgram& self) { return self.compiled.decomposed; })
      .def("pass_times", &PassTimes);
  m.def("last_program",
        [] { return std::const_pointer_cast<CompiledProgram>(Session::Get().LastProgram()); });
  m.def("sizes", &Sizes);
  m.def(
      "set_program_bytes", [](int64_t bytes) { Session::Get().SetProgramBytes(bytes); },
      py::arg("bytes"));
  m.def("last_step", [] {
    const Session::StepRuns step = Session::Get().LastStep();
    py::list programs;
    for (const auto& p : step.programs)
      programs.append(std::const_pointer_cast<CompiledProgram>(p));
    return py::make_tuple(programs, step.since, step.lost);
  });
  m.def("set_key_bits", [](int bits) { Session::Get().SetKeyBits(bits); }, py::arg("bits"));
  m.def("forget_programs", [] { Session::Get().ForgetPrograms(); });
  m.def("programs", [] {
    py::list programs;
    for (const auto& p : Session::Get().Programs()) {
      programs.append(std::const_pointer_cast<CompiledProgram>(p));
    }
    return programs;
  });
  m.def(
      "explain",
      [](const at::Tensor& tensor) { return ValueOrThrow(Session::Get().Explain(tensor)); },
      py::arg("tensor"));
  m.def("compile_events", &CompileEvents);
  m.def("pending_graph", [] { return ValueOrThrow(Session::Get().PendingGraph()); });
}

}  // namespace spmd::python
