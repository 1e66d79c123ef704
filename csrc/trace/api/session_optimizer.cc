// SPDX-License-Identifier: Apache-2.0
// What the hooks around an optimizer's step call.

#include <algorithm>
#include <utility>

#include "csrc/trace/api/session.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// At most this many steps are kept that were never ended, because an exception left them.
constexpr size_t kMostOpen = 4;

// Ends the step: what is recorded from here on belongs to no step of the optimizer.
void EndStep(SessionState& state, const void* optimizer) {
  std::vector<StepPart>& open = state.optimizer_steps.open;
  const auto part = std::find_if(open.begin(), open.end(),
                                 [&](const StepPart& p) { return p.step->optimizer == optimizer; });
  if (part == open.end()) return;
  Close(*part->step);
  part->end = state.tape->num_records();
  part->is_first = !part->step->written;
  state.optimizer_steps.recorded.push_back(std::move(*part));
  open.erase(part);
}

}  // namespace

absl::Status Session::OptimizerBegins(const void* optimizer, HostChangesPtr changes) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  lock->diagnostics.steps.BeginStep();
  std::vector<StepPart>& open = lock->optimizer_steps.open;
  // An exception has left the optimizer's earlier step.
  std::erase_if(open, [&](const StepPart& part) { return part.step->optimizer == optimizer; });
  if (open.size() == kMostOpen) open.erase(open.begin());
  StepPart part;
  part.step = std::make_shared<OptimizerStep>();
  part.step->optimizer = optimizer;
  part.step->changes.push_back(std::move(changes));
  part.begin = lock->tape->num_records();
  open.push_back(std::move(part));
  return absl::OkStatus();
}

void Session::OptimizerRaised(const void* optimizer) {
  SessionLock lock;
  EndStep(*lock, optimizer);
}

absl::Status Session::OptimizerStepped(const void* optimizer,
                                       absl::Span<const at::Tensor> gradients,
                                       GradientHabitPtr habit) {
  SessionLock lock;
  EndStep(*lock, optimizer);
  if (GraphTask() >= 0) return absl::OkStatus();
  lock->micro_steps.OptimizerStepped();
  return RunOrWait(*lock, gradients, std::move(habit));
}

absl::Status Session::GradientsZeroed() {
  if (!StepWaits() || session_flags.forked) return absl::OkStatus();
  SessionLock lock;
  return RunDroppedStep(*lock);
}

absl::Status Session::RunWaitingStep() {
  if (!StepWaits() || session_flags.forked) return absl::OkStatus();
  SessionLock lock;
  return trace::RunWaitingStep(*lock);
}

void Session::AddToLastStep(const void* optimizer, HostChangesPtr changes) {
  SessionLock lock;
  const auto add = [&](const std::vector<StepPart>& steps) {
    for (auto part = steps.rbegin(); part != steps.rend(); ++part) {
      OptimizerStep& step = *part->step;
      if (step.undone || (optimizer != nullptr && step.optimizer != optimizer)) continue;
      changes->Close();
      step.changes.push_back(std::move(changes));
      return true;
    }
    return false;
  };
  if (add(lock->optimizer_steps.recorded)) return;
  for (auto f = lock->in_flight.runs.rbegin(); f != lock->in_flight.runs.rend(); ++f) {
    if (add(f->steps)) return;
  }
}

}  // namespace spmd::trace
