// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_c10d.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/runtime/rounds.h"

namespace spmd::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice(50);
// Whoever waits longer than this says so, for the messages of others.
constexpr std::chrono::milliseconds kNoted(500);
// How long the others have to say what has happened before a process says that one is gone.
constexpr std::chrono::milliseconds kGrace(300);

std::string Seconds(std::chrono::milliseconds time) {
  return absl::StrCat(static_cast<double>(time.count()) / 1000, " s");
}

class C10dPeers : public Peers {
 public:
  C10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<JobWatch> watch,
            std::string channel, std::chrono::milliseconds timeout)
      : Peers(group->getRank(), group->getSize()),
        group_(std::move(group)),
        backend_(group_->getBackend(c10::kCPU)),
        watch_(std::move(watch)),
        channel_(std::move(channel)),
        timeout_(timeout) {}

  void Fail(const absl::Status& why) override { watch_->Fail(why); }
  absl::Status failure() const override { return watch_->failure(); }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    ++step_;
    try {
      at::Tensor from = send, to = receive;
      std::vector<int64_t> in(send_bytes.begin(), send_bytes.end());
      std::vector<int64_t> out(receive_bytes.begin(), receive_bytes.end());
      return Wait(*backend_->alltoall_base(to, from, out, in));
    } catch (const std::exception& e) {
      return SomeoneIsGone(e.what());
    }
  }

 private:
  absl::Status Wait(c10d::Work& work) {
    const Clock::time_point begin = Clock::now();
    const JobWatch::Waiting waiting(*watch_);
    bool noted = false;
    while (true) {
      try {
        work.wait(kSlice);
        return absl::OkStatus();
      } catch (const std::exception& e) {
        // A slice that has passed leaves the work as it is.
        if (work.isCompleted()) {
          if (work.isSuccess()) return absl::OkStatus();
          return SomeoneIsGone(e.what());
        }
      }
      if (absl::Status status = watch_->failure(); !status.ok()) return status;
      if (Interrupted()) {
        FailAsInterrupted(*this);
        return watch_->failure();
      }
      const auto waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      if (!noted && waited > std::min(kNoted, timeout_ / 2)) {
        watch_->NoteWait(channel_, step_, doing());
        noted = true;
      }
      if (waited > timeout_) {
        watch_->Fail(absl::DeadlineExceededError(absl::StrCat(
            ProcessName(rank()), doing().empty() ? "" : absl::StrCat(", which ", doing(), ","),
            " has waited ", Seconds(timeout_), " for ", Missing(),
            ". It may be stopped, or do something else; SPMD_TIMEOUT is how long the processes "
            "wait for each other")));
        return watch_->failure();
      }
    }
  }

  std::string Missing() {
    const auto others = watch_->NotWaiting(channel_, step_);
    if (others.empty()) return "the others";
    return absl::StrJoin(others, " and ", [](std::string* out, const auto& other) {
      absl::StrAppend(out, ProcessName(other.first),
                      other.second.empty() ? "" : absl::StrCat(" (which ", other.second, ")"));
    });
  }

  // The connection to a process has broken. If one has failed, it has said why, or says it now.
  absl::Status SomeoneIsGone(const std::string& text) {
    const JobWatch::Waiting waiting(*watch_);
    watch_->NoteWait(channel_, step_, doing());
    const Clock::time_point begin = Clock::now();
    while (Clock::now() - begin < kGrace) {
      if (absl::Status status = watch_->failure(); !status.ok()) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const std::string who = size() == 2 ? ProcessName(1 - rank()) : Missing();
    watch_->Fail(absl::UnavailableError(
        absl::StrCat(who, who == "the others" ? " are" : " is",
                     " gone: the connection has closed, as when a process is killed or ends early",
                     doing().empty() ? "" : absl::StrCat("; ", ProcessName(rank()), " ", doing()),
                     " (", text.substr(0, text.find('\n')), ")")));
    return watch_->failure();
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<JobWatch> watch_;
  const std::string channel_;
  const std::chrono::milliseconds timeout_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Peers> MakeC10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                     std::shared_ptr<JobWatch> watch, std::string channel,
                                     std::chrono::milliseconds timeout) {
  return std::make_unique<C10dPeers>(std::move(group), std::move(watch), std::move(channel),
                                     timeout);
}

}  // namespace spmd::runtime
