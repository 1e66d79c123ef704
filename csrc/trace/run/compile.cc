// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/compile.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <chrono>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/memory_check.h"
#include "csrc/trace/program/compile_log.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/program/same_tiles.h"
#include "csrc/trace/run/pending_graph.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/byte_text.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Clock = std::chrono::steady_clock;
double MillisecondsSince(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

// Outputs that are computed as views of other sizes are returned in these sizes if their Buffers
// can take such a form. True if there are any.
bool TakeApart(const std::vector<Dims>& apart, std::vector<OutputSpec>& outputs) {
  bool any = false;
  for (size_t k = 0; k < apart.size(); ++k) {
    if (apart[k].empty() || NumElements(apart[k]) == 0 || !outputs[k].may_be_apart) continue;
    outputs[k].apart = apart[k];
    outputs[k].becomes = kNoId;
    any = true;
  }
  return any;
}

// Notes the recording, so that later tapes that begin like this one follow it.
void NoteRecording(SessionState& state, Tape& tape, CachedProgram& cached) {
  cached.recording = tape.Share();
  for (const Record& r : cached.recording->records) cached.ops.push_back(r.op);
  cached.prefixes = cached.recording->RecordKeys();
  state.prefixes.Add(cached.recording);
}

// Returns to the system what compiling a large program has left in the heap, before tiles are
// allocated between. Otherwise half as much memory again stays unused.
void ReturnFreedMemory(const program::Program& compiled) {
  constexpr size_t kLarge = 500;  // instructions; for fewer, searching the heap is not worthwhile
  if (compiled.instructions.size() < kLarge) return;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// A program that does not fit is the last program nevertheless, so that it can be looked at.
absl::Status CheckMemory(SessionState& state, const runtime::Backend& backend,
                         const std::shared_ptr<CompiledProgram>& program) {
  const absl::Status fits =
      runtime::CheckMemory(program->compiled.program, backend, LoadOptions(state).memory_limit);
  if (fits.ok()) return fits;
  program->refused = std::move(program->compiled.program);
  state.diagnostics.last_program = program;
  return fits;
}

// What the compiler chose because memory is short, for explain_compile.
std::string ChosenForMemory(const partition::Compiled& compiled) {
  std::string rings = compiled.in_rings.ToString();
  if (!rings.empty()) rings.insert(0, "; ");
  const partition::GatheredAgain& again = compiled.gathered_again;
  if (again.values.empty()) return rings;
  const int64_t computed = static_cast<int64_t>(again.values.size()) - again.gathers;
  return absl::StrCat(rings, "; gathers ", again.gathers, " and computes ", computed,
                      " values again to hold ", ByteText(again.bytes_after), " instead of ",
                      ByteText(again.bytes_before), ", and sends ", ByteText(again.wire_bytes),
                      " more");
}

}  // namespace

absl::StatusOr<CachedProgramPtr> Compile(SessionState& state, Tape& tape,
                                         std::vector<OutputSpec> outputs, const Hash128& key,
                                         std::vector<int> late_starts, const std::string& reason,
                                         const std::string& why) {
  auto cached = std::make_shared<CachedProgram>();
  auto program = std::make_shared<CompiledProgram>();
  program->number = state.diagnostics.next_program++;
  CompileEvent event;
  event.number = program->number;
  event.reason = reason;
  event.cut = why;
  event.records = static_cast<int64_t>(tape.records().size());

  Clock::time_point start = Clock::now();
  SPMD_ASSIGN_OR_RETURN(Lowered lowered, LowerTape(state, tape, outputs, late_starts));
  event.lower_ms = MillisecondsSince(start);
  program->traced = std::move(lowered.graph);

  start = Clock::now();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  partition::CompileOptions options = CompileOptionsFor(state, *backend);
  partition::EarlierPlans& plans = state.programs.plans();
  const auto compile = [&]() -> absl::Status {
    partition::EarlierPlans::Form form;
    if (partition::UsesAxes(program->traced)) {
      form = partition::EarlierPlans::FormOf(program->traced, *options.machine);
      program->earlier = options.earlier = plans.Find(form);
    }
    SPMD_ASSIGN_OR_RETURN(program->compiled, partition::Compile(program->traced, options));
    if (program->compiled.searched) {
      plans.Add(std::move(form), std::exchange(program->compiled.searched, nullptr));
    }
    return absl::OkStatus();
  };
  SPMD_RETURN_IF_ERROR(compile());
  if (TakeApart(program->compiled.apart, outputs)) {
    SPMD_ASSIGN_OR_RETURN(lowered, LowerTape(state, tape, outputs, late_starts));
    program->traced = std::move(lowered.graph);
    SPMD_RETURN_IF_ERROR(compile());
  }
  event.reason += ChosenForMemory(program->compiled);
  event.compile_ms = MillisecondsSince(start);

  start = Clock::now();
  cached->options = ProgramOptionsOf(state);
  SPMD_RETURN_IF_ERROR(CheckMemory(state, *backend, program));
  runtime::LoadedProgram::Options load = LoadOptions(state);
  load.name = absl::StrCat("program ", program->number);
  SPMD_ASSIGN_OR_RETURN(
      program->loaded,
      runtime::LoadedProgram::Load(std::move(program->compiled.program), backend, std::move(load)));
  event.load_ms = MillisecondsSince(start);
  event.instructions = static_cast<int64_t>(program->program().instructions.size());

  for (const partition::Warning& w : program->compiled.warnings) {
    if (state.hooks.warn != nullptr && state.diagnostics.FirstTime(w.key)) state.hooks.warn(w.text);
  }
  LogCompile(state.options.log, *program, event);
  if (!state.options.dump.empty()) {
    SPMD_RETURN_IF_ERROR(DumpCompile(state.options.dump, *program));
  }
  cached->key = key;
  cached->late_starts = std::move(late_starts);
  cached->outputs = std::move(outputs);
  program->input_names = std::move(lowered.input_names);
  cached->inputs = std::move(lowered.inputs);
  cached->starts = std::move(lowered.starts);
  cached->program = std::move(program);
  const program::Program& made = cached->program->program();
  for (const program::Output& o : made.outputs) {
    cached->layouts.push_back(std::make_shared<const Layout>(made.LayoutOf(o.value)));
  }
  for (size_t k = 0; k < made.inputs.size(); ++k) {
    cached->taken.push_back(std::make_shared<const Layout>(made.LayoutOf(made.inputs[k].value)));
    // Not so if the value is on devices that are none of the program's.
    const LayoutPtr& left = tape.inputs()[cached->inputs[k]].left;
    if (left != nullptr && !SameTiles(*left, *cached->taken[k])) cached->taken[k] = nullptr;
  }
  for (const program::Output& o : made.outputs) {
    if (o.becomes >= 0) cached->taken[o.becomes] = nullptr;
  }
  for (size_t k = 0; k < made.inputs.size(); ++k) {
    const bool overwritten = cached->taken[k] == nullptr;
    cached->asked.push_back(tape.LayoutToTake(static_cast<size_t>(cached->inputs[k]), overwritten));
  }
  NoteRecording(state, tape, *cached);
  for (const int r : RecordsWithStarts(cached->recording->records)) {
    if (!absl::c_binary_search(cached->late_starts, r)) cached->known_starts.push_back(r);
  }
  state.diagnostics.Add(std::move(event));
  ++state.diagnostics.statistics.compiles;
  ReturnFreedMemory(made);
  return cached;
}

absl::Status Explain(SessionState& state, const std::shared_ptr<CompiledProgram>& program) {
  if (program->explained) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  partition::CompileOptions options = CompileOptionsFor(state, *backend);
  options.earlier = program->earlier;
  options.explain = true;
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled, partition::Compile(program->traced, options));
  program->compiled.graph = std::move(compiled.graph);
  program->compiled.reasons = std::move(compiled.reasons);
  program->compiled.times = std::move(compiled.times);
  program->explained = true;
  state.programs.NoteExplained(program);
  return absl::OkStatus();
}

}  // namespace spmd::trace
