// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/failures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/lost_steps.h"
#include "csrc/trace/run/recover.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// By value, the failure by which it is lost because an input is lost; empty if no input is.
// `status_of` gives the status of an input.
template <typename StatusOf>
std::vector<absl::Status> LostValues(const Tape& tape, StatusOf&& status_of) {
  std::vector<absl::Status> lost;
  for (const TapeInput& input : tape.inputs()) {
    const absl::Status& poison = status_of(*tape.value(input.id));
    if (poison.ok()) continue;
    lost.resize(tape.num_values());
    lost[input.id] = poison;
  }
  if (lost.empty()) return lost;
  for (const Record& record : tape.records()) {
    for (const TapeId operand : record.operands) {
      if (operand == kNoId || lost[operand].ok()) continue;
      for (int k = 0; k < record.num_results; ++k) lost[record.first_result + k] = lost[operand];
      break;
    }
  }
  return lost;
}

bool IsThere(const Value& value) {
  return value.tiles != nullptr || value.run != nullptr || value.host.defined();
}

// Buffers of values that are lost get back what they held before, or their values get the failure.
// status_of(id) is ok for a value that is available nevertheless.
template <typename StatusOf>
void GiveUp(const Tape& tape, StatusOf&& status_of) {
  const auto is_lost = [&](Buffer& buffer) {
    return buffer.pending() && !status_of(buffer.value()->id).ok();
  };
  // Buffers are restored first: a second Buffer with the same value may have no previous value.
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    if (is_lost(buffer) && before != kNoId && IsThere(*tape.value(before))) {
      buffer.Bind(tape.value(before));
    }
  });
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId) {
    if (!is_lost(buffer)) return;
    buffer.value()->poison = Lost(status_of(buffer.value()->id));
    buffer.value()->pending = false;
  });
}

// If one value of a step is lost, all its values are. Returns the failure by which the last such
// step is lost.
absl::Status LoseSteps(const Tape& tape, const Live& live, std::vector<StepPart>& steps,
                       std::vector<absl::Status>& lost) {
  absl::Status why;
  for (StepPart& part : steps) {
    const std::vector<TapeId> made = MadeBy(part, tape, live);
    const auto first =
        std::find_if(made.begin(), made.end(), [&](TapeId v) { return !lost[v].ok(); });
    if (first == made.end()) continue;
    why = lost[*first];
    part.lost = part.is_first;
    for (const TapeId v : made) lost[v] = why;
  }
  return why;
}

// The failure by which the value is lost, or ok.
absl::Status LossOf(SessionState& state, const Value& value, Failures failures) {
  if (failures == Failures::kNone || value.run == nullptr) return value.poison;
  if (!value.run->done() || value.run->Wait().ok()) return value.poison;
  RunInFlight* const f = state.in_flight.Find(value.run);
  if (f == nullptr || (failures == Failures::kTold && Unreported(state, *f))) return value.poison;
  Recover(state, *f);
  if (!f->errors[value.run_output].ok()) Report(state, *f);
  return f->errors[value.run_output];
}

}  // namespace

absl::Status Lost(const absl::Status& status) {
  constexpr absl::string_view kLost = "the value was lost, because ops that it depends on failed: ";
  if (absl::StartsWith(status.message(), kLost)) return status;
  return absl::Status(status.code(), absl::StrCat(kLost, status.message()));
}

bool Unreported(SessionState& state, const RunInFlight& f) {
  if (f.reported) return false;
  const runtime::PendingRunPtr cause = f.run->cause();
  if (cause == nullptr) return true;
  const RunInFlight* const root = state.in_flight.Find(cause);
  return root != nullptr && !root->reported;
}

void Report(SessionState& state, RunInFlight& f) {
  f.reported = true;
  RunInFlight* const root = state.in_flight.Find(f.run->cause());
  if (root != nullptr) root->reported = true;
}

std::vector<TapeId> MadeBy(const StepPart& part, const Tape& tape, const Live& live) {
  std::vector<TapeId> made;
  for (const OutputSpec& o : live.outputs) {
    const int record = tape.origin(o.value).record;
    if (record >= 0 && part.Has(record)) made.push_back(o.value);
  }
  return made;
}

// The number of steps, beside those that wait, that a loop that never looks at a value queues
// before it hears of a failure.
constexpr int kMostLostSteps = 8;

bool ManyStepsFailed(const SessionState& state) {
  int failed = 0;
  for (const RunInFlight& f : state.in_flight.runs) {
    if (!f.steps.empty() && f.run->done() && !f.run->Wait().ok()) ++failed;
  }
  return failed >= kMostLostSteps;
}

absl::Status GiveUpDependents(SessionState& state, const Tape& tape, Failures failures,
                              std::vector<StepPart>& steps, Live& live) {
  std::vector<absl::Status> lost =
      LostValues(tape, [&](const Value& v) { return LossOf(state, v, failures); });
  if (lost.empty()) return absl::OkStatus();
  const absl::Status why = LoseSteps(tape, live, steps, lost);
  GiveUp(tape, [&](TapeId id) -> const absl::Status& { return lost[id]; });
  const auto is_lost = [&](TapeId id) { return !lost[id].ok(); };
  live.outputs.erase(std::remove_if(live.outputs.begin(), live.outputs.end(),
                                    [&](const OutputSpec& o) { return is_lost(o.value); }),
                     live.outputs.end());
  for (OutputSpec& o : live.outputs) {
    if (o.becomes != kNoId && is_lost(o.becomes)) o.becomes = kNoId;
  }
  live.lost = std::move(lost);
  return why;
}

void LoseAll(SessionState& state, const Tape& tape, std::vector<StepPart>& steps,
             const absl::Status& status) {
  GiveUp(tape, [&](TapeId) -> const absl::Status& { return status; });
  for (StepPart& part : steps) part.lost = part.is_first;
  NoteLostSteps(state.optimizer_steps, steps);
}

absl::Status Tell(SessionState& state, const absl::Status& status) {
  int steps = TakeLostSteps(state);
  const std::vector<TapeInput>& inputs = state.tape->inputs();
  const bool depends = std::any_of(inputs.begin(), inputs.end(), [&](const TapeInput& input) {
    const Value& value = *state.tape->value(input.id);
    return value.poison.ok() && !LossOf(state, value, Failures::kTold).ok();
  });
  if (depends) {
    Cut(state, "a failure", -1, Failures::kTold).IgnoreError();
    steps += TakeLostSteps(state);
  }
  return SayLostSteps(status, steps);
}

}  // namespace spmd::trace
