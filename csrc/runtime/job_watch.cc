// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/job_watch.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void JobWatch::AddWaiting(int n) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_ += n;
  }
  if (n > 0) changed_.notify_all();
}

void JobWatch::Fail(const absl::Status& why) {
  if (failed_.load(std::memory_order_acquire)) return;
  // What the first process that fails says is what all say.
  auto first = std::make_shared<absl::Status>(why);
  Ask(
      [this, first] {
        const auto kept = store_->compareSet(kFailed, {}, Bytes(StatusToText(*first)));
        const std::lock_guard<std::mutex> lock(mutex_);
        *first = StatusFromText(std::string(kept.begin(), kept.end()));
        failure_.Update(*first);
      },
      std::chrono::seconds(1));
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_.Update(why);
  failed_.store(true, std::memory_order_release);
}

void JobWatch::Look() {
  if (failed_.load(std::memory_order_acquire) || !store_->check({kFailed})) return;
  const std::vector<uint8_t> text = store_->get(kFailed);
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_.Update(StatusFromText(std::string(text.begin(), text.end())));
  failed_.store(true, std::memory_order_release);
}

void JobWatch::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (asked_.empty() && waiting_ == 0) changed_.wait(lock);
    if (asked_.empty()) changed_.wait_for(lock, kLook, [this] { return !asked_.empty(); });
    std::function<void()> f;
    if (!asked_.empty()) {
      f = std::move(asked_.front());
      asked_.pop_front();
    } else if (waiting_ > 0) {
      f = [this] { Look(); };
    }
    if (f == nullptr) continue;
    lock.unlock();
    try {
      f();
    } catch (const std::exception&) {
      // The store is gone, with the process that kept it. The exchanges will say so.
    }
    lock.lock();
  }
}

bool JobWatch::Ask(std::function<void()> f, std::chrono::milliseconds timeout) {
  struct Done {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto done = std::make_shared<Done>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_.push_back([f = std::move(f), done] {
      const auto end = [&] {
        {
          const std::lock_guard<std::mutex> lock(done->mutex);
          done->done = true;
        }
        done->changed.notify_all();
      };
      try {
        f();
      } catch (...) {
        end();
        throw;
      }
      end();
    });
  }
  changed_.notify_all();
  std::unique_lock<std::mutex> lock(done->mutex);
  return done->changed.wait_for(lock, timeout, [&] { return done->done; });
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
