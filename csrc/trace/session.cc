// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/partition/compile.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/compile.h"
#include "csrc/trace/generator.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/session_state.h"
#include "csrc/trace/tensor.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// The pending ops as a graph whose outputs are all values that are bound.
absl::StatusOr<Lowered> LowerPending(Session::State& state) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  std::vector<OutputSpec> outputs;
  std::vector<bool> seen(tape.num_values(), false);
  tape.bindings().ForEach([&](Buffer& buffer, TapeId) {
    if (!buffer.pending() || buffer.value()->tape != tape.number()) return;
    const TapeId id = buffer.value()->id;
    if (!seen[id]) outputs.push_back({id});
    seen[id] = true;
  });
  const MeshSet set = MeshesOf(state, tape, outputs);
  return Lower(tape, outputs, {&set.meshes, &set.grids});
}

}  // namespace

Session::Session() : state_(new State) {
  absl::StatusOr<Options> options = OptionsFromEnvironment();
  state_->bad_options = options.status();
  if (options.ok()) state_->options = *std::move(options);
  state_->programs.SetMostBytes(state_->options.program_memory);
}

Session& Session::Get() {
  static auto* session = new Session;
  return *session;
}

void SessionLock::Wait() {
  void* gil = state_.hooks.release_gil != nullptr ? state_.hooks.release_gil() : nullptr;
  state_.mutex.lock();
  if (gil != nullptr) state_.hooks.reacquire_gil(gil);
}

void Session::SetPythonHooks(PythonHooks hooks) { state_->hooks = hooks; }

// --- backend ---

runtime::LoadedProgram::Options LoadOptions(const Session::State& state) {
  const Options& options = state.options;
  // The queue's thread is the one that returns kept memory (TileMemory::Trim); with `sync` there is
  // no such thread.
  return {.deduplicate = options.deduplicate,
          .coalesce = options.coalesce && !options.verify,
          .turns = options.turns,
          .one_place = options.one_place,
          .keep_memory = options.keep_memory && !options.sync};
}

absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(Session::State& state) {
  if (state.backend != nullptr) return state.backend;
  SPMD_RETURN_IF_ERROR(state.bad_options);
  std::string name = state.backend_name;
  std::optional<int64_t> devices = state.device_count;
  if (name.empty()) name = state.options.backend;
  if (!devices.has_value()) devices = state.options.num_devices;
  state.device_count_set = devices.has_value();
  SPMD_ASSIGN_OR_RETURN(state.backend, runtime::MakeBackend(name, devices));
  return state.backend;
}

absl::Status Session::SetDefaultBackend(const std::string& name, std::optional<int64_t> devices) {
  SessionLock lock;
  if (lock->used) {
    return absl::FailedPreconditionError(absl::StrCat(
        "set_default_backend('", name, "'): tensors of the device exist already",
        lock->backend != nullptr ? absl::StrCat(" on '", lock->backend->name(), "'") : "",
        "; call it before the first tensor is created"));
  }
  SPMD_RETURN_IF_ERROR(lock->bad_options);
  SPMD_ASSIGN_OR_RETURN(lock->backend,
                        runtime::MakeBackend(name, devices, lock->options.num_devices));
  lock->backend_name = name;
  lock->device_count = devices;
  lock->device_count_set = devices.has_value();
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
  return lock->device_count_set;
}

absl::Status NoteMesh(Session::State& state, const Mesh& mesh) {
  if (state.meshes.latest() == mesh) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  int64_t last = 0;
  for (const int64_t id : mesh.device_ids()) last = std::max(last, id);
  if (last >= backend->num_devices() && (state.device_count_set || !backend->elastic())) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh ", mesh.ToString(), " needs device ", last, ", but backend '",
                     backend->name(), "' has ", backend->num_devices(), " devices",
                     state.device_count_set ? " (the number that was set)" : ""));
  }
  state.meshes.Use(mesh);
  return absl::OkStatus();
}

MeshSet MeshesOf(Session::State& state, const Tape& tape, absl::Span<const OutputSpec> outputs) {
  const Needed needed = NeededFor(tape, outputs);
  std::vector<const TapeInput*> inputs;
  for (size_t k = 0; k < tape.inputs().size(); ++k) {
    if (needed.inputs[k]) inputs.push_back(&tape.inputs()[k]);
  }
  std::vector<Mesh> meshes;
  for (const TapeInput* input : inputs) {
    if (input->mark != nullptr) meshes.push_back(input->mark->mesh);
  }
  for (const Annotation& a : tape.annotations()) {
    if (needed.Has(tape, a.value)) meshes.push_back(a.mark->mesh);
  }
  // At most this many meshes of layouts are added, so that a grid is the common refinement of a few
  // meshes.
  constexpr size_t kMostOfLayouts = 16;
  size_t of_layouts = 0;
  const auto add_meshes_of = [&](const LayoutPtr& layout) {
    if (layout == nullptr || of_layouts >= kMostOfLayouts) return;
    for (const Mesh& mesh : state.meshes.MeshesOf(layout->grid())) {
      if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
      meshes.push_back(mesh);
      ++of_layouts;
    }
  };
  for (const TapeInput* input : inputs) add_meshes_of(input->settled);
  for (size_t k = 0; meshes.empty() && k < inputs.size(); ++k) {
    add_meshes_of(tape.value(inputs[k]->id)->layout);
  }
  if (meshes.empty() && state.meshes.latest().has_value()) {
    meshes.push_back(*state.meshes.latest());
  }
  return state.meshes.SetOf(meshes);
}

// --- running ---

absl::Status Session::Sync(bool wait) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(Cut(*lock, "sync"));
  if (!wait || lock->queue == nullptr) return absl::OkStatus();
  return ReportAll(*lock);
}

void Session::Shutdown() {
  SessionLock lock;
  lock->closed = true;
  if (lock->queue != nullptr) {
    const GilReleased no_gil(*lock);
    lock->queue->Shutdown();
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
  std::vector<std::shared_ptr<const CompiledProgram>> programs;
  for (const CachedProgramPtr& cached : lock->programs.recent())
    programs.push_back(cached->program);
  std::sort(programs.begin(), programs.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  return programs;
}

std::shared_ptr<const CompiledProgram> Session::LastProgram() {
  SessionLock lock;
  return lock->last_program;
}

absl::StatusOr<std::string> Session::Explain(const at::Tensor& tensor) {
  SessionLock lock;
  if (!Buffer::IsOurs(tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("explain: the tensor is on '", tensor.device().str(), "', not on 'spmd'"));
  }
  Buffer* buffer = BufferOf(tensor);
  const std::string marked =
      buffer->mark != nullptr ? absl::StrCat("marked ", SpecToString(buffer->mark->spec),
                                             " on mesh ", buffer->mark->mesh.AxesToString(), "\n")
                              : "";
  const ValuePtr& value = buffer->value();
  const std::shared_ptr<CompiledProgram> program =
      value != nullptr ? value->origin.lock() : nullptr;
  if (program != nullptr) {
    SPMD_RETURN_IF_ERROR(trace::Explain(*lock, program));
    const ir::Graph& graph = program->compiled.graph;
    return marked +
           program->compiled.reasons.Explain(graph, graph.outputs()[value->origin_output].value);
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
  // A program that was read from disk has no times.
  if (program->compiled.times.empty()) SPMD_RETURN_IF_ERROR(trace::Explain(*lock, program));
  return program->compiled.times;
}

std::pair<std::vector<ProgramPtr>, int64_t> Session::LastStep() {
  SessionLock lock;
  return {lock->steps.last_step(), lock->steps.runs_since()};
}

std::vector<CompileEvent> Session::CompileEvents() {
  SessionLock lock;
  return {lock->events.begin(), lock->events.end()};
}

Statistics Session::statistics() {
  SessionLock lock;
  return lock->statistics;
}

std::vector<std::pair<std::string, int64_t>> Session::Sizes() {
  SessionLock lock;
  const auto size = [](const auto& container) { return static_cast<int64_t>(container.size()); };
  return {{"programs", size(lock->programs.recent())},
          {"program_bytes", lock->programs.bytes()},
          {"explained_programs", lock->programs.num_explained()},
          {"mesh_sets", static_cast<int64_t>(lock->meshes.num_sets())},
          {"known_prefixes", size(lock->known_prefixes)},
          {"warned", size(lock->warned)},
          {"lines", size(lock->line_of_sequence)},
          {"pending_records", lock->tape->num_records()},
          {"pending_uploads", lock->tape->uploaded_bytes()}};
}

void Session::SetProgramBytes(int64_t bytes) {
  SessionLock lock;
  lock->programs.SetMostBytes(bytes);
}

bool FirstTime(Session::State& state, const std::string& key) {
  constexpr size_t kMost = size_t{1} << 12;
  if (state.warned.size() >= kMost) state.warned.clear();
  return state.warned.insert(key).second;
}

absl::StatusOr<std::string> Session::PendingGraph() {
  SessionLock lock;
  SPMD_ASSIGN_OR_RETURN(const Lowered lowered, LowerPending(*lock));
  return lowered.graph.ToString();
}

absl::StatusOr<PendingCalls> Session::Calls() {
  SessionLock lock;
  PendingCalls calls;
  SPMD_ASSIGN_OR_RETURN(calls.backend, TheBackend(*lock));
  SPMD_ASSIGN_OR_RETURN(Lowered lowered, LowerPending(*lock));
  Tape& tape = *lock->tape;
  for (const int input : lowered.inputs) {
    Value& value = *tape.value(tape.inputs()[input].id);
    SPMD_RETURN_IF_ERROR(Resolve(*lock, value));
    at::Tensor host = value.host;
    if (!host.defined()) {
      SPMD_ASSIGN_OR_RETURN(host, runtime::Download(*value.tiles));
    }
    calls.given.inputs.push_back(std::move(host));
  }
  calls.given.scalars = tape.scalars();
  SPMD_ASSIGN_OR_RETURN(
      partition::Compiled compiled,
      partition::Compile(lowered.graph, CompileOptionsFor(*lock, *calls.backend)));
  calls.graph = std::move(compiled.graph);
  return calls;
}

Options Session::options() {
  SessionLock lock;
  return lock->options;
}

void Session::SetOptions(const Options& options) {
  SessionLock lock;
  lock->options = options;
}

}  // namespace spmd::trace
