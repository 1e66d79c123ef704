// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/executor_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/workers.h"

namespace spmd::runtime {

namespace {

// kIdle is longer than the gap between the steps of a training loop, kLongIdle longer than the gap
// that a pause makes.
constexpr std::chrono::milliseconds kIdle(20), kLongIdle(5000);

}  // namespace

bool PendingRun::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

std::unique_lock<std::mutex> PendingRun::WhenDone() const {
  std::unique_lock<std::mutex> lock(mutex_);
  over_.wait(lock, [this] { return done_; });
  return lock;
}

absl::Status PendingRun::Wait() const {
  const auto lock = WhenDone();
  return status_;
}

bool PendingRun::WaitFor(std::chrono::milliseconds timeout) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return over_.wait_for(lock, timeout, [this] { return done_; });
}

PendingRunPtr PendingRun::cause() const {
  const auto lock = WhenDone();
  return cause_;
}

absl::StatusOr<TiledTensorPtr> PendingRun::Result(int output, bool take) {
  const auto lock = WhenDone();
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
  const auto lock = WhenDone();
  return results_;
}

void PendingRun::Amend(int output, TiledTensorPtr result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (results_.size() <= static_cast<size_t>(output)) results_.resize(output + 1);
  results_[output] = std::move(result);
}

std::vector<LoadedProgram::Argument> PendingRun::TakeBackArguments() {
  const auto lock = WhenDone();
  return std::move(left_);
}

void PendingRun::Finish(absl::Status status, PendingRunPtr cause,
                        std::vector<TiledTensorPtr> results,
                        std::vector<LoadedProgram::Argument> left) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    cause_ = std::move(cause);
    results_ = std::move(results);
    left_ = std::move(left);
    done_ = true;
  }
  over_.notify_all();
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
  std::unique_lock<std::mutex> lock(mutex_);
  if (synchronous_) {
    lock.unlock();
    Execute(std::move(work));
    return run;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  changed_.wait(lock, [this] { return waiting_.size() < bound_ || stop_; });
  waiting_.push_back(std::move(work));
  lock.unlock();
  changed_.notify_all();
  ReleaseWorkers();  // the workers of the queue's thread work now
  return run;
}

void ExecutorQueue::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_wanted = [this] { return stop_ || !waiting_.empty(); };
  while (true) {
    if (!changed_.wait_for(lock, kIdle, is_wanted)) {
      lock.unlock();
      ReleaseWorkers();  // other threads may need the cores now
      lock.lock();
      if (!changed_.wait_for(lock, kLongIdle, is_wanted)) {
        lock.unlock();
        TileMemory::Trim();
        lock.lock();
        changed_.wait(lock, is_wanted);
      }
    }
    if (stop_) return;
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    // Who waits for room is woken when there is some for several programs, and not for each.
    const bool has_room = waiting_.size() <= bound_ / 2;
    lock.unlock();
    if (has_room) changed_.notify_all();
    Execute(std::move(work));
    lock.lock();
    running_ = false;
    if (waiting_.empty()) changed_.notify_all();
  }
}

void ExecutorQueue::WaitForAll() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !running_; });
}

bool ExecutorQueue::WaitForAll(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return waiting_.empty() && !running_; });
}

void ExecutorQueue::DropWaiting() {
  std::deque<Work> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(waiting_);
  }
  changed_.notify_all();
  for (Work& work : dropped) Cancel(std::move(work));
}

void ExecutorQueue::Shutdown() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    synchronous_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  DropWaiting();
}

}  // namespace spmd::runtime
