// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/undo_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/trace/run/recover.h"
#include "csrc/trace/run/wait.h"

namespace spmd::trace {

std::vector<StepPart> TakeSteps(SessionState& state) {
  std::vector<StepPart> steps = std::exchange(state.optimizer_steps.recorded, {});
  for (StepPart& open : state.optimizer_steps.open) {
    StepPart part = open;
    part.end = state.tape->num_records();
    part.under_way = true;
    part.is_first = !part.step->written;
    open.begin = 0;
    steps.push_back(std::move(part));
  }
  return steps;
}

int UndoSteps(SessionState& state) {
  const auto has_steps = [](const RunInFlight& f) { return !f.steps.empty(); };
  if (std::none_of(state.in_flight.runs.begin(), state.in_flight.runs.end(), has_steps)) return 0;
  for (size_t k = 0; k < state.in_flight.runs.size(); ++k) {
    RunInFlight& f = state.in_flight.runs[k];
    if (!WaitFor(state, *f.run).ok()) Recover(state, f);
  }
  std::vector<OptimizerStepPtr> lost;
  for (auto f = state.in_flight.runs.rbegin(); f != state.in_flight.runs.rend(); ++f) {
    for (auto part = f->steps.rbegin(); part != f->steps.rend(); ++part) {
      if (part->lost) lost.push_back(part->step);
    }
  }
  std::erase_if(state.optimizer_steps.open, [&](const StepPart& open) {
    return std::find(lost.begin(), lost.end(), open.step) != lost.end();
  });
  return UndoHostChanges(lost);
}

absl::Status SayUndoneSteps(const absl::Status& status, int steps) {
  const std::string about = AboutUndoneSteps(steps);
  if (status.ok() || about.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), about));
}

}  // namespace spmd::trace
