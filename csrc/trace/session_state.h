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
#include "csrc/runtime/executor.h"
#include "csrc/trace/meshes.h"
#include "csrc/trace/optimizer_step.h"
#include "csrc/trace/program_cache.h"
#include "csrc/trace/repeats.h"
#include "csrc/trace/session.h"
#include "csrc/trace/shape_inference.h"
#include "csrc/trace/steps.h"
#include "csrc/trace/tape.h"
#include "csrc/util/options.h"

namespace spmd::trace {

struct Session::State {
  // The mutex is recursive: an op that runs on host copies may be written in Python and make
  // tensors of the device.
  std::recursive_mutex mutex;
  PythonHooks hooks;

  Options options;
  absl::Status bad_options;  // of the environment; reported when the backend is first asked for
  std::shared_ptr<runtime::Backend> backend;
  std::string backend_name;  // "" until chosen
  std::optional<int64_t> device_count;
  bool device_count_set = false;
  Meshes meshes;

  std::unique_ptr<Tape> tape = std::make_unique<Tape>();
  Repeats repeats;  // where the tape ends by itself
  int depth = 0;    // nesting of ops that are recorded for others
  ShapeCache shapes;
  ProgramCache programs;
  // Beginnings of compiled tapes, by their keys: a tape that equals one of them follows its
  // recording.
  struct Prefix {
    std::weak_ptr<const Recording> recording;
    int32_t events;
  };
  absl::flat_hash_map<Hash128, Prefix> known_prefixes;
  size_t most_prefixes = size_t{1} << 14;  // then those without a recording are dropped
  bool capturing = false;                  // a CallCapture lives
  bool looked_at_values =
      false;  // since it began, an op looked at what it may not be replayed with
  // The user's lines of forward ops, by the sequence number of their autograd nodes.
  absl::flat_hash_map<uint64_t, std::string> line_of_sequence;
  uint64_t latest_sequence = 0;             // of autograd's nodes, on any thread
  absl::flat_hash_set<std::string> warned;  // through FirstTime
  // Made when the first program is compiled; null if programs are not kept on disk.
  std::optional<std::unique_ptr<partition::CompileCache>> disk_cache;

  std::shared_ptr<const CompiledProgram> last_program;
  StepLog steps;
  std::deque<CompileEvent> events;
  Statistics statistics;
  int64_t next_program = 0;
  // Programs run on the queue's thread; a cut returns before they have run.
  std::unique_ptr<runtime::ExecutorQueue> queue;
  struct InFlight {
    struct Argument {
      c10::weak_intrusive_ptr<Value> value;
      std::weak_ptr<runtime::PendingRun> run;  // the run that was to make it, if it was pending
      int output = -1;
    };
    runtime::PendingRunPtr run;
    CachedProgramPtr program;
    std::vector<c10::Scalar> scalars;
    std::vector<Argument> arguments;
    std::vector<c10::weak_intrusive_ptr<Value>> results;
    std::vector<StepPart> steps;       // the optimizer steps that its program computes
    bool reported = false;             // its failure has been raised once
    bool recovered = false;            // see csrc/trace/recover.h
    std::vector<absl::Status> errors;  // by result, after recovery: the failure by which it is lost
  };
  std::deque<InFlight> in_flight;
  absl::Status unseen;  // an unreported failure that no value can report any more
  // True if some backward pass has added to existing gradients, as micro-steps do. From then on
  // every backward pass ends in a cut, so that all passes are one program, until an optimizer step
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

// Holds the session's lock. Releases the GIL while it waits for the lock.
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

// Releases the GIL for its lifetime, if the thread has it: for waiting for programs.
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

// Appends a record with the current task and the user's current line.
TapeId AppendRecord(Session::State& state, Record record, absl::Span<const TensorType> results);
// Runs what is pending. `why` is for explain_compile. `ended_task` is the autograd task that has
// just ended with gradients to which later passes add; these may stay partial sums.
// Requires: the session's lock is held.
// Errors: those of the program; what was pending is then lost and says so when it is read.
absl::Status Cut(Session::State& state, const std::string& why, int64_t ended_task = -1);
// Waits for the run and returns its status. After a signal whose handler raises (Ctrl-C), waits for
// everything that was enqueued and throws the handler's exception. After a second signal, programs
// that have not started are dropped, and the running one stops if it has not overwritten anything
// yet; the message counts the optimizer steps that this undoes.
absl::Status WaitFor(Session::State& state, const runtime::PendingRun& run);
// Waits for the run that makes `value`, if there is one; then `value` has tiles or is on the host.
// Errors: those of the run, reported once; afterwards `value` is what its Buffer held before, or is
// lost.
absl::Status Resolve(Session::State& state, Value& value);
// Takes the results of runs that are done, up to the first failure that has not been reported.
void Collect(Session::State& state);
// Waits for all runs. Errors: that of the first run whose failure has not been reported.
absl::Status ReportAll(Session::State& state);
// The steps that the program of what is pending will compute; nothing recorded afterwards belongs
// to them.
std::vector<StepPart> TakeSteps(Session::State& state);
// Waits for all runs, restores what lost steps have changed on the host, and returns the number of
// these steps.
int UndoSteps(Session::State& state);
// Adds to the message that `steps` steps were undone.
absl::Status SayUndoneSteps(const absl::Status& status, int steps);
// The layout that a pending value would have if it were cut now. Runs nothing.
absl::StatusOr<Layout> ProvisionalLayout(Session::State& state, TapeId value);
// The backend, made at first use.
absl::StatusOr<std::shared_ptr<runtime::Backend>> TheBackend(Session::State& state);
// The options with which programs are loaded. While programs are verified, they run tile by tile,
// since the program of tiles is what the unsharded run is compared with.
runtime::LoadedProgram::Options LoadOptions(const Session::State& state);
// Notes that `mesh` is used. Errors: InvalidArgument if `mesh` has more devices than the user
// allowed.
absl::Status NoteMesh(Session::State& state, const Mesh& mesh);
// The meshes of the part of the tape that the outputs need: those of its marks, which name the
// axes, and those in which its inputs have settled. If there are none, those of the layouts of its
// inputs; else the mesh that was used last.
MeshSet MeshesOf(Session::State& state, const Tape& tape, absl::Span<const OutputSpec> outputs);
// True the first time for each warning, by `key`; again after thousands of others have been given.
bool FirstTime(Session::State& state, const std::string& key);

}  // namespace spmd::trace
