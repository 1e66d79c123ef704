// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/optimizer_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/trace/recover.h"
#include "csrc/trace/session_state.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}  // namespace torch::autograd

namespace spmd::trace {

namespace {

// At most this many steps are kept that were never ended, because an exception left them.
constexpr size_t kMostOpen = 4;

void Close(OptimizerStep& step) {
  if (std::exchange(step.closed, true)) return;
  for (const HostChangesPtr& changes : step.changes) changes->Close();
}

// Ends the step: what is recorded from here on belongs to no step of the optimizer.
void EndStep(Session::State& state, const void* optimizer) {
  std::vector<StepPart>& open = state.open_steps;
  const auto part = std::find_if(open.begin(), open.end(),
                                 [&](const StepPart& p) { return p.step->optimizer == optimizer; });
  if (part == open.end()) return;
  Close(*part->step);
  part->end = state.tape->num_records();
  part->is_first = !part->step->written;
  state.recorded_steps.push_back(std::move(*part));
  open.erase(part);
}

}  // namespace

int UndoHostChanges(const std::vector<OptimizerStepPtr>& steps) {
  int undone = 0;
  for (const OptimizerStepPtr& step : steps) {
    if (std::exchange(step->undone, true)) continue;
    ++undone;
    Close(*step);
    for (auto changes = step->changes.rbegin(); changes != step->changes.rend(); ++changes) {
      (*changes)->Undo();
    }
  }
  return undone;
}

std::string AboutUndoneSteps(int steps) {
  if (steps < 2) return "";
  return absl::StrCat("; ", steps,
                      " steps of the optimizer did not happen: the one that needed it, and those "
                      "that were recorded before it failed");
}

std::vector<StepPart> TakeSteps(Session::State& state) {
  std::vector<StepPart> steps = std::exchange(state.recorded_steps, {});
  for (StepPart& open : state.open_steps) {
    StepPart part = open;
    part.end = state.tape->num_records();
    part.under_way = true;
    part.is_first = !part.step->written;
    open.begin = 0;
    steps.push_back(std::move(part));
  }
  return steps;
}

int UndoSteps(Session::State& state) {
  const auto has_steps = [](const Session::State::InFlight& f) { return !f.steps.empty(); };
  if (std::none_of(state.in_flight.begin(), state.in_flight.end(), has_steps)) return 0;
  for (size_t k = 0; k < state.in_flight.size(); ++k) {
    Session::State::InFlight& f = state.in_flight[k];
    if (!WaitFor(state, *f.run).ok()) Recover(state, f);
  }
  std::vector<OptimizerStepPtr> lost;
  for (auto f = state.in_flight.rbegin(); f != state.in_flight.rend(); ++f) {
    for (auto part = f->steps.rbegin(); part != f->steps.rend(); ++part) {
      if (part->lost) lost.push_back(part->step);
    }
  }
  std::erase_if(state.open_steps, [&](const StepPart& open) {
    return std::find(lost.begin(), lost.end(), open.step) != lost.end();
  });
  return UndoHostChanges(lost);
}

absl::Status SayUndoneSteps(const absl::Status& status, int steps) {
  const std::string about = AboutUndoneSteps(steps);
  if (status.ok() || about.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), about));
}

void Session::OptimizerBegins(const void* optimizer, HostChangesPtr changes) {
  SessionLock lock;
  std::vector<StepPart>& open = lock->open_steps;
  // An exception has left the optimizer's earlier step.
  std::erase_if(open, [&](const StepPart& part) { return part.step->optimizer == optimizer; });
  if (open.size() == kMostOpen) open.erase(open.begin());
  StepPart part;
  part.step = std::make_shared<OptimizerStep>();
  part.step->optimizer = optimizer;
  part.step->changes.push_back(std::move(changes));
  part.begin = lock->tape->num_records();
  open.push_back(std::move(part));
}

void Session::OptimizerRaised(const void* optimizer) {
  SessionLock lock;
  EndStep(*lock, optimizer);
}

absl::Status Session::OptimizerStepped(const void* optimizer) {
  SessionLock lock;
  EndStep(*lock, optimizer);
  if (torch::autograd::get_current_graph_task_id() >= 0) return absl::OkStatus();
  if (lock->passes_since_step == 1) lock->accumulates = false;
  lock->passes_since_step = 0;
  const int64_t runs = lock->statistics.runs;
  const absl::Status status = Cut(*lock, "optimizer step");
  if (lock->statistics.runs > runs) lock->steps.EndStep();
  return status;
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
  if (add(lock->recorded_steps)) return;
  for (auto f = lock->in_flight.rbegin(); f != lock->in_flight.rend(); ++f) {
    if (add(f->steps)) return;
  }
}

}  // namespace spmd::trace
