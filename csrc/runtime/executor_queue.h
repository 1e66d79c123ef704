// SPDX-License-Identifier: Apache-2.0
// Runs programs while the caller goes on: on one thread, in order, with at most a few waiting.
#pragma once

#include <c10/core/Scalar.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // Sets the result for `output` of a failed run, which somebody computed in another way.
  void Amend(int output, TiledTensorPtr result);
  // Waits. The arguments that a failed run did not take. `value` is null for those that it took,
  // and for all after success.
  std::vector<LoadedProgram::Argument> TakeBackArguments();

 private:
  friend class ExecutorQueue;
  // Waits, and returns the lock held.
  std::unique_lock<std::mutex> WhenDone() const;
  void Finish(absl::Status status, std::shared_ptr<PendingRun> cause,
              std::vector<TiledTensorPtr> results, std::vector<LoadedProgram::Argument> left);

  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  bool done_ = false;
  absl::Status status_;
  std::shared_ptr<PendingRun> cause_;
  std::vector<TiledTensorPtr> results_;
  std::vector<LoadedProgram::Argument> left_;
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
      : synchronous_(synchronous), bound_(bound) {}
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
  static void Execute(Work work);
  static void Cancel(Work work);

  bool synchronous_;
  const size_t bound_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace spmd::runtime
