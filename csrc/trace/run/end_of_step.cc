// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/end_of_step.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/cut.h"

namespace spmd::trace {

namespace {

// How many of the gradients' Buffers are alive. Others may hold the same values: the first momentum
// is the gradient.
int64_t CountHeld(const Tape& tape, const WaitingStep& step) {
  int64_t held = 0;
  tape.bindings().ForEach([&](const Buffer& buffer, TapeId) {
    held += std::binary_search(step.gradients.begin(), step.gradients.end(),
                               static_cast<TapeId>(buffer.bound_at));
  });
  return held;
}

// True if a program has failed, or a value is lost that the tape needs.
bool HasFailed(const SessionState& state) {
  const auto failed = [](const RunInFlight& f) { return f.run->done() && !f.run->Wait().ok(); };
  if (std::any_of(state.in_flight.runs.begin(), state.in_flight.runs.end(), failed)) return true;
  const Tape& tape = *state.tape;
  return std::any_of(tape.inputs().begin(), tape.inputs().end(),
                     [&](const TapeInput& input) { return !tape.value(input.id)->poison.ok(); });
}

constexpr char kWhy[] = "optimizer step";

}  // namespace

absl::Status RunOrWait(SessionState& state, absl::Span<const at::Tensor> gradients,
                       GradientHabitPtr habit) {
  WaitingStep step;
  step.habit = std::move(habit);
  for (const at::Tensor& gradient : gradients) {
    const Buffer& buffer = *BufferOf(gradient);
    const bool is_of_tape = buffer.bound_on == state.tape->number();
    if (is_of_tape && buffer.pending()) {
      step.gradients.push_back(static_cast<TapeId>(buffer.bound_at));
    }
  }
  absl::c_sort(step.gradients);
  step.gradients.erase(std::unique(step.gradients.begin(), step.gradients.end()),
                       step.gradients.end());
  const bool waits = !step.habit->kept && !step.gradients.empty() && !HasFailed(state);
  // A step that does not wait is one whose wait is over, and from which nothing is learnt.
  if (!waits) step.gradients.clear();
  state.waiting_step = std::move(step);
  internal::step_waits = true;
  return waits ? absl::OkStatus() : RunWaitingStep(state);
}

absl::Status RunWaitingStep(SessionState& state) {
  // After a fork, and when the interpreter ends, nothing runs any more.
  if (!StepWaits() || session_flags.forked || state.closed) return absl::OkStatus();
  return Cut(state, kWhy);
}

absl::Status RunDroppedStep(SessionState& state) {
  if (!StepWaits() || CountHeld(*state.tape, *state.waiting_step) > 0) return absl::OkStatus();
  return RunWaitingStep(state);
}

std::optional<WaitingStep> TakeWaitingStep(SessionState& state) {
  internal::step_waits = false;
  std::optional<WaitingStep> step = std::exchange(state.waiting_step, std::nullopt);
  if (step.has_value() && !step->gradients.empty()) {
    const auto all = static_cast<int64_t>(step->gradients.size());
    step->habit->kept = step->habit->kept || CountHeld(*state.tape, *step) == all;
  }
  return step;
}

}  // namespace spmd::trace
