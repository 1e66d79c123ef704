// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/end_of_step.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/cut.h"

namespace spmd::trace {

namespace {

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

absl::Status RunOrWait(SessionState& state, absl::Span<const at::Tensor> gradients) {
  std::vector<TapeId> pending;  // by number among the bindings
  for (const at::Tensor& gradient : gradients) {
    const Buffer& buffer = *BufferOf(gradient);
    if (buffer.bound_on != state.tape->number() || !buffer.pending()) continue;
    pending.push_back(static_cast<TapeId>(buffer.bound_at));
  }
  state.step_waits = internal::step_waits = true;
  if (pending.empty() || HasFailed(state)) return RunWaitingStep(state);
  state.tape->WatchBindings(pending, state.hooks.gradients_dropped);
  return absl::OkStatus();
}

absl::Status RunWaitingStep(SessionState& state) {
  // After a fork, and when the interpreter ends, nothing runs any more.
  if (!StepWaits() || session_flags.forked || state.closed) return absl::OkStatus();
  if (!state.step_waits) {  // another thread has needed what it computes
    internal::step_waits = false;
    return absl::OkStatus();
  }
  return Cut(state, kWhy);
}

absl::Status RunDroppedStep(SessionState& state) {
  if (!StepWaits()) return absl::OkStatus();
  if (state.step_waits && state.tape->bindings().num_watched() > 0) return absl::OkStatus();
  return RunWaitingStep(state);
}

bool EndWait(SessionState& state) {
  internal::step_waits = false;
  return std::exchange(state.step_waits, false);
}

}  // namespace spmd::trace
