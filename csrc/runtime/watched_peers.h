// SPDX-License-Identifier: Apache-2.0
// What processes that exchange through torch.distributed or through memory have in common: how
// their waits end.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "csrc/runtime/job_watch.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

class WatchedPeers : public Peers {
 public:
  WatchedPeers(int rank, int size, std::shared_ptr<JobWatch> watch, std::string channel,
               std::chrono::milliseconds timeout)
      : Peers(rank, size),
        watch_(std::move(watch)),
        channel_(std::move(channel)),
        timeout_(timeout) {}

  void Fail(const absl::Status& why) override { watch_->Fail(why); }
  absl::Status failure() const override { return watch_->failure(); }

 protected:
  using Clock = std::chrono::steady_clock;
  // A wait consists of slices. Between them a process looks whether the wait has ended otherwise.
  static constexpr std::chrono::milliseconds kSlice{50};

  class Wait {
   public:
    explicit Wait(WatchedPeers& peers) : peers_(peers), waiting_(*peers.watch_) {}
    // Errors: another process has failed, this one is interrupted, or the timeout is over.
    absl::Status GoesOn();

   private:
    WatchedPeers& peers_;
    const Clock::time_point begin_ = Clock::now();
    const JobWatch::Waiting waiting_;
    bool noted_ = false;
  };

  // The number of the exchange that takes place.
  void BeginStep() { ++step_; }
  int64_t step() const { return step_; }

  // The error after a connection has broken: if a process has failed, it has said why, or says it
  // now. `who` is the process that is gone, -1 if that is not known; `how` is how this is known.
  absl::Status SomeoneIsGone(int who, const std::string& how);

 private:
  std::string Missing();

  const std::shared_ptr<JobWatch> watch_;
  const std::string channel_;
  const std::chrono::milliseconds timeout_;
  int64_t step_ = 0;
};

}  // namespace spmd::runtime
