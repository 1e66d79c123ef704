// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/resolve.h"

#include <algorithm>
#include <utility>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/run/failures.h"
#include "csrc/trace/run/recover.h"
#include "csrc/trace/run/wait.h"

namespace spmd::trace {

namespace {

// True if an unreported failure must be kept: a live value is lost with it, or a later run depends
// on its surviving results.
bool MayBeSeen(const SessionState& state, const RunInFlight& f) {
  for (const auto& weak : f.results) {
    const ValuePtr value = weak.lock();
    if (value != nullptr && value->run == f.run) return true;
  }
  return std::any_of(
      state.in_flight.runs.begin(), state.in_flight.runs.end(), [&](const auto& later) {
        return std::any_of(later.arguments.begin(), later.arguments.end(),
                           [&](const auto& argument) { return argument.run.lock() == f.run; });
      });
}

}  // namespace

absl::Status Resolve(SessionState& state, Value& value) {
  if (value.run == nullptr) return value.poison;
  const runtime::PendingRunPtr run = value.run;
  absl::Status status = WaitFor(state, *run), told;
  if (RunInFlight* const entry = status.ok() ? nullptr : state.in_flight.Find(run)) {
    Recover(state, *entry);
    if (value.run == nullptr) return value.poison;
    if (!entry->errors[value.run_output].ok()) status = entry->errors[value.run_output];
    const bool first = Unreported(state, *entry);
    Report(state, *entry);
    if (first) told = Tell(state, status);  // may release the entry
  }
  if (value.run != nullptr) {
    value.run = nullptr;
    const ValuePtr before = std::move(value.before);
    value.before = nullptr;
    if (status.ok()) {
      // The result is not taken, since a waiting run may have it as an argument.
      auto tiles = run->Result(value.run_output, /*take=*/false);
      if (!tiles.ok()) return value.poison = tiles.status();
      value.tiles = *std::move(tiles);
      return absl::OkStatus();
    }
    if (before != nullptr) Resolve(state, *before).IgnoreError();
    if (before != nullptr && before->poison.ok() && before->tiles != nullptr) {
      value.tiles = before->tiles;
      value.layout = before->layout;
    } else {
      value.poison = Lost(status);
    }
  }
  return told.ok() ? value.poison : told;
}

absl::Status ReportAll(SessionState& state) {
  absl::Status first = std::exchange(state.in_flight.unseen, absl::OkStatus());
  for (RunInFlight& f : state.in_flight.runs) {
    const absl::Status status = WaitFor(state, *f.run);
    if (status.ok()) continue;
    Recover(state, f);
    if (Unreported(state, f)) first.Update(status);
    Report(state, f);
  }
  if (!first.ok()) first = Tell(state, first);
  Collect(state);
  return first;
}

void Collect(SessionState& state) {
  std::deque<RunInFlight>& runs = state.in_flight.runs;
  for (auto it = runs.begin(); it != runs.end() && it->run->done();) {
    const absl::Status status = it->run->Wait();
    if (!status.ok() && Unreported(state, *it)) {
      Recover(state, *it);
      if (MayBeSeen(state, *it)) {
        ++it;
        continue;
      }
      state.in_flight.unseen.Update(status);
    }
    if (!status.ok()) NoteLostSteps(state.optimizer_steps, it->steps);
    // Most results are available and are taken at once.
    std::vector<runtime::TiledTensorPtr> tiles = it->run->Results();
    for (const auto& result : it->results) {
      const ValuePtr value = result.lock();
      if (value == nullptr || value->run != it->run) continue;
      if (status.ok() && tiles[value->run_output] != nullptr) {
        value->tiles = std::move(tiles[value->run_output]);
        value->run = nullptr;
        value->before = nullptr;
      } else {
        Resolve(state, *value).IgnoreError();
      }
    }
    it = runs.erase(it);
  }
}

}  // namespace spmd::trace
