// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/job_watch.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {
namespace {

constexpr std::chrono::milliseconds kLook(40);
constexpr char kFailed[] = "failed";

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string WaitKey(const std::string& channel, int rank) {
  return absl::StrCat("waits/", channel, "/", rank);
}

}  // namespace

std::shared_ptr<JobWatch> JobWatch::Make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                         int size) {
  const std::shared_ptr<JobWatch> watch(new JobWatch(std::move(store), rank, size));
  // The thread lives as long as the process: it may be waiting for a store that does not answer.
  std::thread([watch] { watch->Loop(); }).detach();
  return watch;
}

absl::Status JobWatch::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  const absl::MutexLock lock(&mutex_);
  return failure_;
}

void JobWatch::AddWaiting(int n) {
  const absl::MutexLock lock(&mutex_);
  waiting_ += n;
}

void JobWatch::Fail(const absl::Status& why) {
  if (failed_.load(std::memory_order_acquire)) return;
  // What the first process that fails says is what all say.
  auto first = std::make_shared<absl::Status>(why);
  Ask(
      [this, first] {
        const auto kept = store_->compareSet(kFailed, {}, Bytes(StatusToText(*first)));
        const absl::MutexLock lock(&mutex_);
        *first = StatusFromText(std::string(kept.begin(), kept.end()));
        failure_.Update(*first);
      },
      std::chrono::seconds(1));
  const absl::MutexLock lock(&mutex_);
  failure_.Update(why);
  failed_.store(true, std::memory_order_release);
}

void JobWatch::Look() {
  if (failed_.load(std::memory_order_acquire) || !store_->check({kFailed})) return;
  const std::vector<uint8_t> text = store_->get(kFailed);
  const absl::MutexLock lock(&mutex_);
  failure_.Update(StatusFromText(std::string(text.begin(), text.end())));
  failed_.store(true, std::memory_order_release);
}

void JobWatch::Loop() {
  const auto is_wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !asked_.empty() || waiting_ > 0;
  };
  const auto is_asked = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !asked_.empty(); };
  while (true) {
    std::function<void()> f;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&is_wanted));
      mutex_.AwaitWithTimeout(absl::Condition(&is_asked), absl::FromChrono(kLook));
      if (!asked_.empty()) {
        f = std::move(asked_.front());
        asked_.pop_front();
      } else if (waiting_ > 0) {
        f = [this] { Look(); };
      }
    }
    if (f == nullptr) continue;
    try {
      f();
    } catch (const std::exception&) {
      // The store is gone, with the process that kept it. The exchanges will say so.
    }
  }
}

bool JobWatch::Ask(std::function<void()> f, std::chrono::milliseconds timeout) {
  const auto done = std::make_shared<absl::Notification>();
  {
    const absl::MutexLock lock(&mutex_);
    asked_.push_back([f = std::move(f), done] {
      try {
        f();
      } catch (...) {
        done->Notify();
        throw;
      }
      done->Notify();
    });
  }
  return done->WaitForNotificationWithTimeout(absl::FromChrono(timeout));
}

void JobWatch::NoteWait(const std::string& channel, int64_t step, const std::string& doing) {
  const std::string key = WaitKey(channel, rank_), text = absl::StrCat(step, "\n", doing);
  Ask([self = shared_from_this(), key, text] { self->store_->set(key, Bytes(text)); },
      std::chrono::milliseconds(0));
}

std::vector<std::pair<int, std::string>> JobWatch::NotWaiting(const std::string& channel,
                                                              int64_t step) {
  using Others = std::vector<std::pair<int, std::string>>;
  const auto others = std::make_shared<Others>();
  const bool answered = Ask(
      [self = shared_from_this(), others, channel, step] {
        for (int r = 0; r < self->size_; ++r) {
          if (r == self->rank_) continue;
          const std::string key = WaitKey(channel, r);
          std::string text, doing;
          if (self->store_->check({key})) {
            const auto bytes = self->store_->get(key);
            text.assign(bytes.begin(), bytes.end());
          }
          const size_t line = text.find('\n');
          int64_t theirs = -1;
          if (line != std::string::npos && absl::SimpleAtoi(text.substr(0, line), &theirs)) {
            doing = text.substr(line + 1);
          }
          if (theirs != step) others->emplace_back(r, doing);
        }
      },
      std::chrono::seconds(1));
  return answered ? *others : Others();
}

}  // namespace spmd::runtime
