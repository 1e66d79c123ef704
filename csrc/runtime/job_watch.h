// SPDX-License-Identifier: Apache-2.0
// What the processes of a job tell each other beside their exchanges: that one has failed, and for
// whom each waits. It goes through the store of torch.distributed.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace spmd::runtime {

// The store is asked on a thread of its own, since it may not answer: the process that keeps it may
// be stopped. Thread safety: all functions may be called from any thread.
class JobWatch : public std::enable_shared_from_this<JobWatch> {
 public:
  // `store` is this job's alone.
  static std::shared_ptr<JobWatch> Make(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // The first failure of any process, as far as it is known here.
  absl::Status failure() const;
  // Notes a failure and tells the others. If another process has failed first, its failure stays.
  void Fail(const absl::Status& why);

  // While it lives, the failures of others are looked for, every few milliseconds.
  class Waiting {
   public:
    explicit Waiting(JobWatch& watch) : watch_(watch) { watch_.AddWaiting(1); }
    ~Waiting() { watch_.AddWaiting(-1); }
    Waiting(const Waiting&) = delete;

   private:
    JobWatch& watch_;
  };
  // Tells the others that this process waits in step `step` of a channel, and what for.
  void NoteWait(const std::string& channel, int64_t step, const std::string& doing);
  // The processes that do not wait in `step` of the channel as NoteWait says, each with what it did
  // last. Takes a second at most.
  std::vector<std::pair<int, std::string>> NotWaiting(const std::string& channel, int64_t step);

 private:
  JobWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}
  void AddWaiting(int n);
  void Loop();
  void Look();
  // Runs `f` on the thread that may ask the store; true if it ended in time.
  bool Ask(std::function<void()> f, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace spmd::runtime
