// SPDX-License-Identifier: Apache-2.0
// What the session holds, and the lock that guards it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "csrc/partition/compile_cache.h"
#include "csrc/runtime/environment.h"
#include "csrc/runtime/executor.h"
#include "csrc/trace/meshes.h"
#include "csrc/trace/optimizer_step.h"
#include "csrc/trace/program_cache.h"
#include "csrc/trace/repeats.h"
#include "csrc/trace/session.h"
#include "csrc/trace/shape_inference.h"
#include "csrc/trace/steps.h"
#include "csrc/trace/tape.h"

namespace spmd::trace {

struct Session::State {
  // Recursive: an op run on host copies may be written in Python and make tensors of the device.
  std::recursive_mutex mutex;
  PythonHooks hooks;

  std::shared_ptr<runtime::Backend> backend;
  std::string backend_name;  // "" until chosen
  std::optional<int64_t> device_count;
  bool device_count_set = false;
  Meshes meshes;

  std::unique_ptr<Tape> tape = std::make_unique<Tape>();
  Repeats repeats;  // where the tape ends by itself
  int depth = 0;    // of ops that are recorded for others
  ShapeCache shapes;
  ProgramCache programs{runtime::EnvironmentProgramBytes()};
  // Beginnings of compiled tapes, by their keys: a tape that is one of them follows it.
  struct Prefix {
    std::weak_ptr<const Recording> recording;
    int32_t events;
  };
  absl::flat_hash_map<Hash128, Prefix> known_prefixes;
  size_t most_prefixes = size_t{1} << 14;  // then those whose recording is gone are dropped
  bool capturing = false;                  // a CallCapture lives
  bool looked_at_values =
      false;  // since it began, an op looked at what it may not be replayed with
  // Lines of forward ops by the sequence number of their autograd nodes.
  absl::flat_hash_map<uint64_t, std::string> line_of_sequence;
  uint64_t latest_sequence = 0;             // of autograd's nodes, on any thread
  absl::flat_hash_set<std::string> warned;  // through FirstTime
  bool deduplicate = true;
  bool coalesce = runtime::EnvironmentCoalesce();
  std::optional<runtime::Log> log;  // read when the first program is compiled
  // Made then, too; null where programs are not kept on disk.
  std::optional<std::unique_ptr<partition::CompileCache>> disk_cache;
  const bool verify = runtime::EnvironmentVerify();

  std::shared_ptr<const CompiledProgram> last_program;
  StepLog steps;
  std::deque<CompileEvent> events;
  Statistics statistics;
  int64_t next_program = 0;
  // Programs run on its thread; cuts return before they have.
  std::unique_ptr<runtime::ExecutorQueue> queue;
  struct InFlight {
    struct Argument {
      c10::weak_intrusive_ptr<Value> value;
      std::weak_ptr<runtime::PendingRun> run;  // that was to make it, if it was not there
      int output = -1;
    };
    runtime::PendingRunPtr run;
    CachedProgramPtr program;
    std::vector<c10::Scalar> scalars;
    std::vector<Argument> arguments;
    std::vector<c10::weak_intrusive_ptr<Value>> results;
    std::vector<StepPart> steps;       // of optimizers, that its program makes
    bool reported = false;             // its failure has been raised once
    bool recovered = false;            // see csrc/trace/recover.h
    std::vector<absl::Status> errors;  // by result, once it is: what it is lost for
  };
  std::deque<InFlight> in_flight;
  absl::Status unseen;  // a failure that nobody looked at, and that no value can tell of any more
  // Some backward pass has added to gradients that were there: micro-steps. From then on every
  // backward pass ends in a cut, so that they are one program; until a step of the optimizer
  // follows a single pass.
  bool accumulates = false;
  int64_t last_task = -1;  // the graph task of the last record of a backward pass
  int passes_since_step = 0;
  int64_t ending_task = -1;  // the graph task that will end in a cut
  bool closed = false;       // the interpreter ends
  std::atomic<bool> forked{false};
  std::atomic<bool> used{false};
  std::vector<StepPart> open_steps;      // of optimizers, that are under way, outermost first
  std::vector<StepPart> recorded_steps;  // that are over, and pending on the tape
};

// Holds the session's lock; gives up the GIL while waiting for it.
class SessionLock {
 public:
  SessionLock() : state_(Session::Get().state()) {
    if (!state_.mutex.try_lock()) Wait();
  }
  ~SessionLock() { state_.mutex.unlock(); }
  SessionLock(const SessionLock&) = delete;
  Session::State* operator->() { return &state_; }
  Session::State& operator*() { return state_; }

 private:
  void Wait();

  Session::State& state_;
};

// Gives up the GIL for its lifetime, if the thread has it: while waiting for programs.
class GilReleased {
 public:
  explicit GilReleased(Session::State& state) : state_(state) {
    if (state_.hooks.release_gil != nullptr) gil_ = state_.hooks.release_gil();
  }
  ~GilReleased() {
    if (gil_ != nullptr) state_.hooks.reacquire_gil(gil_);
  }
  GilReleased(const GilReleased&) = delete;

 private:
  Session::State& state_;
  void* gil_ = nullptr;
};

// Appends a record with the task and the user's line of the moment.
TapeId AppendRecord(Session::State& state, Record record, absl::Span<const TensorType> results);
// Runs what is pending. `why` is for explain_compile. `ended_task`: the autograd task that has just
// ended with gradients which later passes add to; these may stay the terms of a sum. Requires: the
// lock is held.
// Errors: the program's; what was pending is then lost and says so when read.
absl::Status Cut(Session::State& state, const std::string& why, int64_t ended_task = -1);
// Waits for the run and says how it went. After a signal whose handler raises (Ctrl-C) all that was
// enqueued is waited for, and the handler's exception is thrown. After a second one programs that
// have not started are dropped, and the one that runs is stopped where nothing has been overwritten
// yet; steps of optimizers that this undoes are counted in the message.
absl::Status WaitFor(Session::State& state, const runtime::PendingRun& run);
// Waits for the run that makes the value, if one does; then it has tiles, or is on the host.
// Errors: the run's, once; after that the value is what its Buffer held before, or is lost.
absl::Status Resolve(Session::State& state, Value& value);
// Takes over the results of runs that are done, up to the first failure that nobody has seen.
void Collect(Session::State& state);
// Waits for all runs. Errors: that of the first one whose failure nobody has seen.
absl::Status ReportAll(Session::State& state);
// The steps that the program of what is pending makes; from here on nothing belongs to them.
std::vector<StepPart> TakeSteps(Session::State& state);
// Waits for all runs. Puts back what steps that are lost have changed on the host, and returns how
// many these are.
int UndoSteps(Session::State& state);
// With a word about that many steps.
absl::Status SayUndoneSteps(const absl::Status& status, int steps);
// The layout that a pending value would have if it were cut now. Runs nothing.
absl::StatusOr<Layout> ProvisionalLayout(Session::State& state, TapeId value);
// The backend, made at first use.
absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(Session::State& state);
// How programs are loaded now. Tile by tile where they are verified: what an unsharded run is
// compared with is the program of tiles.
runtime::LoadedProgram::Options LoadOptions(const Session::State& state);
// Takes note of a mesh. Errors: InvalidArgument when it has more devices than the user allowed.
absl::Status NoteMesh(Session::State& state, const Mesh& mesh);
// The meshes that the part of the tape speaks of which the outputs need: those of its marks, which
// name the axes, and those in which its inputs have settled. Where there are none, those in which
// its inputs lie; else the mesh that was used last.
MeshSet MeshesOf(Session::State& state, const Tape& tape, absl::Span<const OutputSpec> outputs);
// True once for a warning, by its key; again when thousands of others have been given since.
bool FirstTime(Session::State& state, const std::string& key);

}  // namespace spmd::trace
