// SPDX-License-Identifier: Apache-2.0
// Runs programs while the caller goes on: on one thread, in order, with at most a few waiting.
#pragma once

#include <c10/core/Scalar.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/observers.h"

namespace spmd::runtime {

class ExecutorQueue;

// One run of a program, which may not have happened yet. Thread safety: all functions may be called
// from any thread.
class PendingRun {
 public:
  bool done() const;
  // Blocks until the run is over and returns its status.
  absl::Status Wait() const;
  // Waits for at most `timeout`; true if the run is over.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Waits. If this run failed because an argument was to come from a failed run, that run;
  // otherwise null.
  std::shared_ptr<PendingRun> cause() const;
  // Waits. The result for `output`. With `take` the run gives up its own reference, so that the
  // caller can be the only owner of the tiles.
  // Errors: the run's, unless this result was amended; FailedPrecondition if the result was taken
  // before.
  absl::StatusOr<TiledTensorPtr> Result(int output, bool take);
  // Waits. All results; null for one that was taken or was not computed.
  std::vector<TiledTensorPtr> Results() const;
  // Sets the result for `output` of a failed run, which someone computed in another way.
  void Amend(int output, TiledTensorPtr result);
  // Waits. The arguments that a failed run did not take. `value` is null for those that it took,
  // and for all after success.
  std::vector<LoadedProgram::Argument> TakeBackArguments();

 private:
  friend class ExecutorQueue;
  void Finish(absl::Status status, std::shared_ptr<PendingRun> cause,
              std::vector<TiledTensorPtr> results, std::vector<LoadedProgram::Argument> left);

  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PendingRun> cause_ ABSL_GUARDED_BY(mutex_);
  std::vector<TiledTensorPtr> results_ ABSL_GUARDED_BY(mutex_);
  std::vector<LoadedProgram::Argument> left_ ABSL_GUARDED_BY(mutex_);
};
using PendingRunPtr = std::shared_ptr<PendingRun>;

// Tiles that exist, or that an earlier run will compute.
struct PendingTiles {
  TiledTensorPtr tiles;  // null: the tiles are output `output` of `run`
  PendingRunPtr run;
  int output = 0;
};

// Thread safety: all functions may be called from any thread. The destructor waits for the program
// that runs and drops those that wait.
class ExecutorQueue {
 public:
  struct Argument {
    PendingTiles value;
    bool donate =
        false;  // see LoadedProgram::Argument; a pending result is then taken from its run
  };

  // `synchronous`: programs run inside Enqueue, on the caller's thread. Otherwise the first Enqueue
  // starts a thread, and Enqueue blocks while `bound` programs wait.
  explicit ExecutorQueue(bool synchronous, size_t bound = 8)
      : bound_(bound), synchronous_(synchronous) {}
  ~ExecutorQueue() { Shutdown(); }
  ExecutorQueue(const ExecutorQueue&) = delete;
  ExecutorQueue& operator=(const ExecutorQueue&) = delete;

  // If the run that an argument comes from fails, this run fails with the same status, and its
  // other arguments can be taken back. What observes the caller's thread sees the run, which has
  // forgotten its observers when it is over.
  PendingRunPtr Enqueue(std::shared_ptr<LoadedProgram> program, std::vector<Argument> arguments,
                        std::vector<c10::Scalar> scalars);
  // Blocks until no program runs or waits.
  void WaitForAll();
  // Waits for at most `timeout`; true if no program runs or waits.
  bool WaitForAll(std::chrono::milliseconds timeout);
  // Drops programs that have not started; their runs end as Cancelled.
  void DropWaiting();
  // Drops the programs that wait, waits for the one that runs, and ends the thread. Later programs
  // run synchronously.
  void Shutdown();

 private:
  struct Work {
    PendingRunPtr run;
    std::shared_ptr<LoadedProgram> program;
    std::vector<Argument> arguments;
    std::vector<c10::Scalar> scalars;
    std::optional<Observers> observers = std::nullopt;  // of the thread that asked for the run
  };
  void Loop();
  // Wait for at most `timeout`; true if there is a program or the queue ends, and if no program
  // runs or waits, respectively.
  bool WaitUntilWanted(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitUntilIdle(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Execute(Work work);
  static void Cancel(Work work);

  const size_t bound_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool synchronous_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace spmd::runtime
