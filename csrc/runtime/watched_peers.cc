// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/watched_peers.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/runtime/rounds.h"

namespace spmd::runtime {
namespace {

// Whoever waits longer than this says so, for the messages of others.
constexpr std::chrono::milliseconds kNoted(500);
// How long the others have to say what has happened before a process says that one is gone.
constexpr std::chrono::milliseconds kGrace(300);

std::string Seconds(std::chrono::milliseconds time) {
  return absl::StrCat(static_cast<double>(time.count()) / 1000, " s");
}

}  // namespace

absl::Status WatchedPeers::Wait::GoesOn() {
  JobWatch& watch = *peers_.watch_;
  if (absl::Status status = watch.failure(); !status.ok()) return status;
  if (peers_.Interrupted()) {
    FailAsInterrupted(peers_);
    return watch.failure();
  }
  const std::chrono::milliseconds timeout = peers_.timeout_;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  if (!noted_ && waited > std::min(kNoted, timeout / 2)) {
    watch.NoteWait(peers_.channel_, peers_.step_, peers_.doing());
    noted_ = true;
  }
  if (waited <= timeout) return absl::OkStatus();
  watch.Fail(absl::DeadlineExceededError(
      absl::StrCat(ProcessName(peers_.rank()),
                   peers_.doing().empty() ? "" : absl::StrCat(", which ", peers_.doing(), ","),
                   " has waited ", Seconds(timeout), " for ", peers_.Missing(),
                   ". It may be stopped, or do something else; SPMD_TIMEOUT is how long the "
                   "processes wait for each other")));
  return watch.failure();
}

std::string WatchedPeers::Missing() {
  const auto others = watch_->NotWaiting(channel_, step_);
  if (others.empty()) return "the others";
  std::vector<std::string> names;
  for (const auto& [rank, does] : others) {
    names.push_back(absl::StrCat(rank, does.empty() ? "" : absl::StrCat(" (which ", does, ")")));
  }
  if (names.size() == 1) return absl::StrCat("process ", names.front());
  const std::string last = std::move(names.back());
  names.pop_back();
  return absl::StrCat("processes ", absl::StrJoin(names, ", "), " and ", last);
}

absl::Status WatchedPeers::SomeoneIsGone(int who, const std::string& how) {
  const JobWatch::Waiting waiting(*watch_);
  watch_->NoteWait(channel_, step_, doing());
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < kGrace) {
    if (absl::Status status = watch_->failure(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (who < 0 && size() == 2) who = 1 - rank();
  const std::string name = who >= 0 ? ProcessName(who) : Missing();
  const bool one = absl::StartsWith(name, "process ");
  watch_->Fail(absl::UnavailableError(absl::StrCat(
      name, one ? " is" : " are", " gone: ", how, ", as when a process is killed or ends early",
      doing().empty() ? "" : absl::StrCat("; ", ProcessName(rank()), " ", doing()))));
  return watch_->failure();
}

}  // namespace spmd::runtime
