// SPDX-License-Identifier: Apache-2.0
// What the hooks around an optimizer's step call.

#include <algorithm>
#include <utility>

#include "csrc/trace/api/session.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/lost_steps.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// Ends the step: what is recorded from here on belongs to no step of the optimizer.
void EndStep(SessionState& state, const void* optimizer) {
  std::vector<StepPart>& open = state.optimizer_steps.open;
  const auto part = std::find_if(open.begin(), open.end(),
                                 [&](const StepPart& p) { return p.step->optimizer == optimizer; });
  if (part == open.end()) return;
  part->end = state.tape->num_records();
  part->is_first = !part->step->written;
  state.optimizer_steps.recorded.push_back(std::move(*part));
  open.erase(part);
}

}  // namespace

absl::StatusOr<int64_t> Session::OptimizerBegins(const void* optimizer, const void* call) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  lock->diagnostics.steps.BeginStep();
  LeaveSteps(*lock);
  std::vector<StepPart>& open = lock->optimizer_steps.open;
  // The frame of a call that an exception has left may be used again.
  std::erase_if(open, [&](const StepPart& part) { return part.step->call == call; });
  StepPart part;
  part.step = std::make_shared<OptimizerStep>();
  part.step->optimizer = optimizer;
  part.step->call = call;
  part.begin = lock->tape->num_records();
  open.push_back(std::move(part));
  return lock->optimizer_steps.lost;
}

absl::Status Session::OptimizerStepped(const void* optimizer,
                                       absl::Span<const at::Tensor> gradients) {
  SessionLock lock;
  EndStep(*lock, optimizer);
  if (GraphTask() >= 0) return absl::OkStatus();
  lock->micro_steps.OptimizerStepped();
  return RunOrWait(*lock, gradients);
}

absl::Status Session::GradientsDropped() {
  // What this thread is within, if it holds the session, is a use of the device, which ends a wait.
  if (!StepWaits() || session_flags.forked || session_mutex.IsMine()) return absl::OkStatus();
  SessionLock lock;
  return RunDroppedStep(*lock);
}

absl::Status Session::RunWaitingStep() {
  if (!StepWaits() || session_flags.forked) return absl::OkStatus();
  SessionLock lock;
  return trace::RunWaitingStep(*lock);
}

bool Session::IsLost(const at::Tensor& tensor) {
  SessionLock lock;
  if (!Buffer::IsOurs(tensor)) return false;
  Value* const value = BufferOf(tensor)->made();
  if (value == nullptr) return false;
  if (value->run != nullptr && value->run->done()) Resolve(*lock, *value).IgnoreError();
  return value->run == nullptr && !value->poison.ok();
}

}  // namespace spmd::trace
