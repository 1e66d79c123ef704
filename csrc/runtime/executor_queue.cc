// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/executor_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/workers.h"

namespace spmd::runtime {

namespace {

// kIdle is longer than the gap between the steps of a training loop, kLongIdle longer than the gap
// that a pause makes.
constexpr absl::Duration kIdle = absl::Milliseconds(20), kLongIdle = absl::Seconds(5);

}  // namespace

bool PendingRun::done() const {
  const absl::MutexLock lock(&mutex_);
  return done_;
}

absl::Status PendingRun::Wait() const {
  const absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  return status_;
}

bool PendingRun::WaitFor(std::chrono::milliseconds timeout) const {
  const absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&done_), absl::FromChrono(timeout));
}

PendingRunPtr PendingRun::cause() const {
  const absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  return cause_;
}

absl::StatusOr<TiledTensorPtr> PendingRun::Result(int output, bool take) {
  const absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  const bool amended = output < static_cast<int>(results_.size()) && results_[output] != nullptr;
  if (!status_.ok() && !amended) return status_;
  TiledTensorPtr& result = results_.at(output);
  if (result == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("result ", output, " has been taken by an earlier call"));
  }
  return take ? std::exchange(result, nullptr) : result;
}

std::vector<TiledTensorPtr> PendingRun::Results() const {
  const absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  return results_;
}

void PendingRun::Amend(int output, TiledTensorPtr result) {
  const absl::MutexLock lock(&mutex_);
  if (results_.size() <= static_cast<size_t>(output)) results_.resize(output + 1);
  results_[output] = std::move(result);
}

std::vector<LoadedProgram::Argument> PendingRun::TakeBackArguments() {
  const absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  return std::move(left_);
}

void PendingRun::Finish(absl::Status status, PendingRunPtr cause,
                        std::vector<TiledTensorPtr> results,
                        std::vector<LoadedProgram::Argument> left) {
  const absl::MutexLock lock(&mutex_);
  status_ = std::move(status);
  cause_ = std::move(cause);
  results_ = std::move(results);
  left_ = std::move(left);
  done_ = true;
}

void ExecutorQueue::Execute(Work work) {
  std::vector<LoadedProgram::Argument> arguments;
  absl::Status status;
  PendingRunPtr cause;
  for (Argument& argument : work.arguments) {
    PendingTiles& value = argument.value;
    LoadedProgram::Argument ready{std::move(value.tiles), argument.donate};
    if (ready.value == nullptr && value.run != nullptr) {
      auto result = value.run->Result(value.output, argument.donate);
      if (result.ok()) {
        ready.value = *std::move(result);
      } else if (status.ok()) {
        status = result.status();
        cause = value.run->cause();
        if (cause == nullptr) cause = value.run;
      }
    }
    arguments.push_back(std::move(ready));
  }
  std::vector<TiledTensorPtr> results;
  if (status.ok()) {
    std::optional<Observers::Scope> observed;
    if (work.observers.has_value()) observed.emplace(*work.observers);
    auto ran = work.program->Run(absl::MakeSpan(arguments), work.scalars);
    if (ran.ok()) {
      results = *std::move(ran);
      arguments.clear();
    } else {
      status = ran.status();
    }
  }
  work.observers.reset();
  work.run->Finish(std::move(status), std::move(cause), std::move(results), std::move(arguments));
}

void ExecutorQueue::Cancel(Work work) {
  std::vector<LoadedProgram::Argument> arguments;
  for (Argument& argument : work.arguments) {
    arguments.push_back({std::move(argument.value.tiles), argument.donate});
  }
  work.run->Finish(absl::CancelledError("dropped before it started"), nullptr, {},
                   std::move(arguments));
}

PendingRunPtr ExecutorQueue::Enqueue(std::shared_ptr<LoadedProgram> program,
                                     std::vector<Argument> arguments,
                                     std::vector<c10::Scalar> scalars) {
  auto run = std::make_shared<PendingRun>();
  Work work{run, std::move(program), std::move(arguments), std::move(scalars),
            Observers::OfThisThread()};
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (synchronous_) {
      lock.Release();
      Execute(std::move(work));
      return run;
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    while (waiting_.size() >= bound_ && !stop_) changed_.Wait(&mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.SignalAll();
  ReleaseWorkers();  // the workers of the queue's thread work now
  return run;
}

bool ExecutorQueue::WaitUntilWanted(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!stop_ && waiting_.empty()) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  return stop_ || !waiting_.empty();
}

bool ExecutorQueue::WaitUntilIdle(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!waiting_.empty() || running_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  return waiting_.empty() && !running_;
}

void ExecutorQueue::Loop() {
  mutex_.Lock();
  while (true) {
    if (!WaitUntilWanted(kIdle)) {
      mutex_.Unlock();
      ReleaseWorkers();  // other threads may need the cores now
      mutex_.Lock();
      if (!WaitUntilWanted(kLongIdle)) {
        mutex_.Unlock();
        TileMemory::Trim();
        mutex_.Lock();
        WaitUntilWanted(absl::InfiniteDuration());
      }
    }
    if (stop_) break;
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    // Who waits for room is woken when there is some for several programs, and not for each.
    const bool has_room = waiting_.size() <= bound_ / 2;
    mutex_.Unlock();
    if (has_room) changed_.SignalAll();
    Execute(std::move(work));
    mutex_.Lock();
    running_ = false;
    if (waiting_.empty()) changed_.SignalAll();
  }
  mutex_.Unlock();
}

void ExecutorQueue::WaitForAll() {
  const absl::MutexLock lock(&mutex_);
  WaitUntilIdle(absl::InfiniteDuration());
}

bool ExecutorQueue::WaitForAll(std::chrono::milliseconds timeout) {
  const absl::MutexLock lock(&mutex_);
  return WaitUntilIdle(absl::FromChrono(timeout));
}

void ExecutorQueue::DropWaiting() {
  std::deque<Work> dropped;
  {
    const absl::MutexLock lock(&mutex_);
    dropped.swap(waiting_);
  }
  changed_.SignalAll();
  for (Work& work : dropped) Cancel(std::move(work));
}

void ExecutorQueue::Shutdown() {
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
    synchronous_ = true;
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
  DropWaiting();
}

}  // namespace spmd::runtime
