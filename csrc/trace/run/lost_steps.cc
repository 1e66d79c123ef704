// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/lost_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/run/recover.h"
#include "csrc/trace/run/wait.h"

namespace spmd::trace {

void LeaveSteps(SessionState& state) {
  // A backward pass, in which the optimizer's own call waits, may run on another thread.
  if (state.hooks.is_running == nullptr || GraphTask() >= 0) return;
  std::erase_if(state.optimizer_steps.open,
                [&](const StepPart& part) { return !state.hooks.is_running(part.step->call); });
}

std::vector<StepPart> TakeSteps(SessionState& state) {
  LeaveSteps(state);
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

int TakeLostSteps(SessionState& state) {
  const auto has_steps = [](const RunInFlight& f) { return !f.steps.empty(); };
  if (std::any_of(state.in_flight.runs.begin(), state.in_flight.runs.end(), has_steps)) {
    for (size_t k = 0; k < state.in_flight.runs.size(); ++k) {
      RunInFlight& f = state.in_flight.runs[k];
      if (!WaitFor(state, *f.run).ok()) Recover(state, f);
    }
    for (const RunInFlight& f : state.in_flight.runs) {
      NoteLostSteps(state.optimizer_steps, f.steps);
    }
  }
  return std::exchange(state.optimizer_steps.untold, 0);
}

}  // namespace spmd::trace
