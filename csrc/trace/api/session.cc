// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/partition/compile.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/peers.h"
#include "csrc/trace/device/generator.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/compile.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/join_threads.h"
#include "csrc/trace/run/pending_graph.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/run/wait.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

Session& Session::Get() {
  static auto* session = new Session;
  return *session;
}

void Session::SetPythonHooks(PythonHooks hooks) {
  SessionLock lock;
  lock->hooks = hooks;
}

// --- backend ---

absl::Status Session::SetDefaultBackend(const std::string& name, std::optional<int64_t> devices) {
  SessionLock lock;
  if (session_flags.used) {
    return absl::FailedPreconditionError(absl::StrCat(
        "set_backend('", name, "'): tensors of the device exist already",
        lock->devices.backend != nullptr ? absl::StrCat(" on '", lock->devices.backend->name(), "'")
                                         : "",
        "; call it before the first tensor is created"));
  }
  SPMD_RETURN_IF_ERROR(lock->bad_options);
  if (lock->processes.several()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "set_backend('", name,
        "'): the devices have been dealt to the processes of the job already; call it first"));
  }
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend,
                        runtime::MakeBackend(name, devices, lock->options.num_devices));
  SPMD_RETURN_IF_ERROR(JoinProcesses(*lock, backend));
  UseBackend(*lock, std::move(backend));
  lock->devices.backend_name = name;
  lock->devices.count = devices;
  lock->devices.count_is_set = devices.has_value();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<runtime::Backend>> Session::backend() {
  SessionLock lock;
  return TheBackend(*lock);
}

absl::StatusOr<int64_t> Session::DeviceCount() {
  SessionLock lock;
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(*lock));
  return backend->num_devices();
}

bool Session::device_count_was_set() {
  SessionLock lock;
  if (!TheBackend(*lock).ok()) return false;
  return lock->devices.count_is_set;
}

// --- running ---

absl::Status Session::Sync(bool wait) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CutOthers(*lock, "sync"));
  SPMD_RETURN_IF_ERROR(Cut(*lock, "sync"));
  if (!wait || lock->in_flight.queue == nullptr) return absl::OkStatus();
  SPMD_RETURN_IF_ERROR(ReportAll(*lock));
  const GilReleased no_gil(*lock);
  try {
    lock->devices.backend->Synchronize();
  } catch (const std::exception& e) {
    return runtime::StatusFromException(e, "waiting for the device");
  }
  return absl::OkStatus();
}

void Session::WaitForPrograms() {
  SessionLock lock;
  if (lock->in_flight.runs.empty()) return;
  const runtime::PendingRunPtr last = lock->in_flight.runs.back().run;
  WaitFor(*lock, *last).IgnoreError();
}

absl::Status Session::Leave() {
  SessionLock lock;
  if (!lock->processes.several()) return absl::OkStatus();
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  if (lock->in_flight.queue != nullptr) {
    const GilReleased no_gil(*lock);
    lock->in_flight.queue->WaitForAll();
  }
  return AgreeToLeave(*lock);
}

void Session::LeaveBecause(const std::string& why) {
  SessionLock lock;
  if (std::exchange(lock->processes.left, true) || !lock->processes.several()) return;
  lock->processes.job.script->Fail(absl::UnavailableError(why));
}

absl::StatusOr<Session::ProcessInfo> Session::Process() {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(TheBackend(*lock).status());
  const Processes& processes = lock->processes;
  return ProcessInfo{processes.rank(), processes.size(), processes.description};
}

void Session::Shutdown() {
  SessionLock lock;
  lock->closed = true;
  if (lock->in_flight.queue != nullptr) {
    const GilReleased no_gil(*lock);
    lock->in_flight.queue->Shutdown();
  }
  lock->hooks = {};
}

// --- random numbers ---

void Session::ManualSeed(uint64_t seed) {
  at::Generator generator = DefaultGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

uint64_t Session::InitialSeed() { return DefaultGenerator().current_seed(); }

// --- seeing ---

std::vector<std::shared_ptr<const CompiledProgram>> Session::Programs() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  std::vector<std::shared_ptr<const CompiledProgram>> programs;
  for (const CachedProgramPtr& cached : lock->programs.recent())
    programs.push_back(cached->program);
  std::sort(programs.begin(), programs.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  return programs;
}

std::shared_ptr<const CompiledProgram> Session::LastProgram() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  return lock->diagnostics.last_program;
}

namespace {

// "the tensor that mark_sharding marked at train.py:8: marked ('data', None) on mesh …".
std::string MarkText(const Mark& mark) {
  return absl::StrCat(mark.name, mark.name.empty() ? "" : ": ", "marked ", SpecToString(mark.spec),
                      " on mesh ", mark.mesh.AxesToString(), "\n");
}

// Words for a value of the program's graph that a user knows: what was marked and where, or the op
// that computed it and the line. Names of values say nothing outside the program's text.
std::string NameIn(const CompiledProgram& program, ir::ValueId v) {
  const ir::Graph& graph = program.compiled.graph;
  const ir::Value& value = graph.value(v);
  if (value.producer == ir::kNoNode) {
    const auto it = program.input_names.find(value.name);
    return it != program.input_names.end() ? it->second : "an input without a mark";
  }
  const ir::Node& node = graph.node(value.producer);
  return absl::StrCat(
      node.num_results == 1 ? "the result of " : absl::StrCat("result ", value.index, " of "),
      node.op, node.source < 0 ? "" : absl::StrCat(" at ", graph.sources()[node.source]));
}

}  // namespace

absl::StatusOr<std::string> Session::Explain(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  if (!Buffer::IsOurs(tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("explain: the tensor is on '", tensor.device().str(), "', not on 'spmd'"));
  }
  Buffer* buffer = BufferOf(tensor);
  const std::string marked = buffer->mark != nullptr ? MarkText(*buffer->mark) : "";
  const ValuePtr& value = buffer->value();
  const std::shared_ptr<CompiledProgram> program =
      value != nullptr ? value->origin.lock() : nullptr;
  if (program != nullptr) {
    SPMD_RETURN_IF_ERROR(trace::Explain(*lock, program));
    const ir::Graph& graph = program->compiled.graph;
    return marked +
           program->compiled.reasons.Explain(graph, graph.outputs()[value->origin_output].value,
                                             [&](ir::ValueId v) { return NameIn(*program, v); });
  }
  if (!marked.empty()) return marked;
  if (buffer->pending()) {
    return std::string("pending: no program has computed this value yet");
  }
  if (value != nullptr && value->origin_output >= 0) {
    return std::string("the program that computed this value is no longer kept");
  }
  return std::string("uploaded: no program has written this tensor");
}

absl::StatusOr<std::string> Session::GraphText(const std::shared_ptr<CompiledProgram>& program) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::Explain(*lock, program));
  return program->compiled.graph.ToString();
}

absl::StatusOr<std::vector<partition::Compiled::PassTime>> Session::PassTimes(
    const std::shared_ptr<CompiledProgram>& program) {
  SessionLock lock;
  return program->compiled.times;
}

Session::StepRuns Session::LastStep() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  const StepLog& steps = lock->diagnostics.steps;
  return {steps.last_step(), steps.runs_since(), steps.lost()};
}

std::vector<CompileEvent> Session::CompileEvents() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  return {lock->diagnostics.events.begin(), lock->diagnostics.events.end()};
}

Statistics Session::statistics() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  return lock->diagnostics.statistics;
}

std::vector<std::pair<std::string, int64_t>> Session::Sizes() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  const auto size = [](const auto& container) { return static_cast<int64_t>(container.size()); };
  return {{"programs", size(lock->programs.recent())},
          {"program_bytes", lock->programs.bytes()},
          {"explained_programs", lock->programs.num_explained()},
          {"mesh_sets", static_cast<int64_t>(lock->meshes.num_sets())},
          {"known_prefixes", size(lock->prefixes)},
          {"warned", size(lock->diagnostics.warned)},
          {"lines", size(lock->lines)},
          {"pending_records", lock->tape->num_records()},
          {"pending_uploads", lock->tape->uploaded_bytes()}};
}

void Session::SetProgramBytes(int64_t bytes) {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  lock->programs.SetMostBytes(bytes);
}

absl::StatusOr<std::string> Session::PendingGraph() {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_ASSIGN_OR_RETURN(const Pending pending, LowerPending(*lock));
  return pending.lowered.graph.ToString();
}

absl::StatusOr<PendingCalls> Session::Calls() {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  PendingCalls calls;
  SPMD_ASSIGN_OR_RETURN(calls.backend, TheBackend(*lock));
  SPMD_ASSIGN_OR_RETURN(const Pending pending, LowerPending(*lock));
  Tape& tape = *lock->tape;
  for (const int input : pending.lowered.inputs) {
    Value& value = *tape.value(tape.inputs()[input].id);
    SPMD_RETURN_IF_ERROR(Resolve(*lock, value));
    at::Tensor host = value.host;
    if (!host.defined()) {
      SPMD_ASSIGN_OR_RETURN(host, ReadValue(*lock, value, "calls"));
    }
    calls.given.inputs.push_back(std::move(host));
  }
  calls.given.scalars = tape.scalars();
  SPMD_ASSIGN_OR_RETURN(
      partition::Compiled compiled,
      partition::Compile(pending.lowered.graph, CompileOptionsFor(*lock, *calls.backend)));
  calls.graph = std::move(compiled.graph);
  return calls;
}

void Session::SetKeyBits(int bits) {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  lock->prefixes.SetKeyBits(bits);
  lock->programs.SetKeyBits(bits);
}

Options Session::options() {
  SessionLock lock;
  return lock->options;
}

void Session::SetOptions(const Options& options) {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  lock->options = options;
}

void Session::SetAnswers(std::vector<std::pair<std::string, double>> answers) {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  lock->answers = std::move(answers);
}

}  // namespace spmd::trace
