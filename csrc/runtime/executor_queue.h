// SPDX-License-Identifier: Apache-2.0
// Running programs while the caller goes on: one thread, in order, at most a few waiting.
#pragma once

#include <c10/core/Scalar.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "csrc/runtime/executor.h"

namespace spmd::runtime {

class ExecutorQueue;

// One run of a program that may not have happened yet. Thread safety: safe.
class PendingRun {
 public:
  bool done() const;
  // Blocks until the run is over and says how it went.
  absl::Status Wait() const;
  // The same for at most `timeout`; true when the run is over.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Waits. The run whose failure this one ended with: another one when an argument was to come from
  // it, null otherwise.
  std::shared_ptr<PendingRun> cause() const;
  // Waits. The result for output k; `take` gives away the run's own reference, so that the caller
  // can be the tiles' only owner. Errors: the run's, unless the result was amended;
  // FailedPrecondition when it was taken before.
  absl::StatusOr<TiledTensorPtr> Result(int output, bool take);
  // Waits. All results; null where one was taken, or was not made.
  std::vector<TiledTensorPtr> Results() const;
  // The failed run's result for output k after all: somebody made it another way.
  void Amend(int output, TiledTensorPtr result);
  // Waits. What a failed run did not take of its arguments; `value` is null where it did, and
  // everywhere after success.
  std::vector<LoadedProgram::Argument> TakeBackArguments();

 private:
  friend class ExecutorQueue;
  // Waits, and holds the lock.
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

// Tiles that are there, or that an earlier run will make.
struct PendingTiles {
  TiledTensorPtr tiles;  // null: output `output` of `run`
  PendingRunPtr run;
  int output = 0;
};

// Thread safety: safe. Destruction waits for the program that runs and drops those that wait.
class ExecutorQueue {
 public:
  struct Argument {
    PendingTiles value;
    bool donate =
        false;  // see LoadedProgram::Argument; a pending result is then taken from its run
  };

  // `synchronous`: programs run inside Enqueue, on the caller's thread. Otherwise a thread is
  // started at first use; Enqueue blocks while `bound` programs wait.
  explicit ExecutorQueue(bool synchronous, size_t bound = 8)
      : synchronous_(synchronous), bound_(bound) {}
  ~ExecutorQueue() { Shutdown(); }
  ExecutorQueue(const ExecutorQueue&) = delete;
  ExecutorQueue& operator=(const ExecutorQueue&) = delete;

  // A run whose argument's run failed fails with the same status; what it was given else can be
  // taken back.
  PendingRunPtr Enqueue(std::shared_ptr<LoadedProgram> program, std::vector<Argument> arguments,
                        std::vector<c10::Scalar> scalars);
  // Blocks until nothing runs or waits.
  void WaitForAll();
  // The same for at most `timeout`; true when nothing runs or waits.
  bool WaitForAll(std::chrono::milliseconds timeout);
  // Drops programs that have not started; their runs end as Cancelled.
  void DropWaiting();
  // Drops what waits, waits for what runs, ends the thread. Later programs run synchronously.
  void Shutdown();

 private:
  struct Work {
    PendingRunPtr run;
    std::shared_ptr<LoadedProgram> program;
    std::vector<Argument> arguments;
    std::vector<c10::Scalar> scalars;
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
