// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/cut.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/enqueue.h"
#include "csrc/trace/run/find_program.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/run/lost_steps.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/run/wait.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// The form with its dimensions split into those of `sizes`.
BaseForm FormApart(const BaseForm& form, const Dims& sizes) {
  BaseForm apart{.dtype = form.dtype, .sizes = sizes, .strides = Dims(sizes.size())};
  size_t end = sizes.size();
  for (size_t d = form.sizes.size(); d-- > 0;) {
    int64_t within = 1;
    do {
      --end;
      apart.strides[end] = form.strides[d] * within;
      within *= sizes[end];
    } while (within < form.sizes[d]);
  }
  return apart;
}

// By output of the tape's program: the value that the run makes.
std::vector<ValuePtr> ResultsOf(const Tape& tape, const CachedProgram& cached) {
  std::vector<ValuePtr> results;
  for (const OutputSpec& o : cached.outputs) results.push_back(tape.value(o.value));
  return results;
}

// Compiles the tape or finds its program, and enqueues it.
absl::Status Run(SessionState& state, Tape& tape, Live& live, std::vector<StepPart> steps,
                 const std::string& why) {
  absl::StatusOr<CachedProgramPtr> cached;
  absl::StatusOr<runtime::PendingRunPtr> run;
  std::vector<ValuePtr> results;
  const absl::Status agreed = AgreeOnCut(state, tape, live, why);
  if (!agreed.ok()) {
    LoseAll(state, tape, steps, agreed);
    return agreed;
  }
  if (live.outputs.empty()) return absl::OkStatus();
  try {
    cached = FindOrCompile(state, tape, live, why);
    if (cached.ok()) {
      state.prefixes.Ended(state.last_recording, (*cached)->recording);
      state.last_recording = (*cached)->recording;
      results = ResultsOf(tape, **cached);
    }
    run = cached.ok() ? Enqueue(state, tape, *cached, results) : cached.status();
  } catch (const std::exception& e) {  // a bug here, or no memory for an upload
    LoseAll(state, tape, steps, absl::InternalError(e.what()));
    // The others have begun to run what this process cannot.
    SPMD_RETURN_IF_ERROR(
        EndTogether(state, e, absl::StrCat("preparing ", tape.num_records(), " calls")));
    throw;
  }
  if (!run.ok()) {
    LoseAll(state, tape, steps, run.status());
    return run.status();
  }
  std::vector<int64_t> made_by;
  for (const int input : (*cached)->inputs) {
    made_by.push_back(tape.value(tape.inputs()[input].id)->origin_run);
  }
  const int64_t number = state.diagnostics.steps.Ran((*cached)->program, made_by);
  for (size_t k = 0; k < (*cached)->outputs.size(); ++k) {
    const ValuePtr& value = results[k];
    value->pending = false;
    if (!(*cached)->outputs[k].apart.empty()) value->type.dims = (*cached)->outputs[k].apart;
    value->run = *run;
    value->run_output = static_cast<int>(k);
    value->layout = (*cached)->layouts[k];
    value->origin = (*cached)->program;
    value->origin_output = static_cast<int>(k);
    value->origin_run = number;
  }
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    Value& value = *buffer.value();
    if (value.run != *run) return;
    if (value.type.dims != buffer.form.sizes)
      buffer.Rebase(FormApart(buffer.form, value.type.dims));
    if (before == kNoId) return;
    if (tape.type(before) == value.type) value.before = tape.value(before);
    buffer.settled = value.layout;
  });
  const auto is_tensor = [&](TapeId v) { return NumElements(tape.type(v).dims) > 1; };
  for (const StepPart& part : steps) {
    if (!part.under_way) continue;
    const std::vector<TapeId> made = MadeBy(part, tape, live);
    if (std::any_of(made.begin(), made.end(), is_tensor)) part.step->written = true;
  }
  state.in_flight.runs.back().steps = std::move(steps);
  ++state.diagnostics.statistics.runs;
  state.diagnostics.last_program = (*cached)->program;
  return absl::OkStatus();
}

absl::Status CutTape(SessionState& state, const std::string& why, int64_t ended_task,
                     Failures failures, const Buffer* asked) {
  // Where others may still hold what this process has dropped, it takes part.
  const bool several = state.processes.several();
  if (state.tape->bindings().empty() && !(several && state.tape->num_records() > 0)) {
    TakeSteps(state);
    if (state.tape->num_values() > 0) state.tape = NewTape(state);
    return absl::OkStatus();
  }
  if (state.closed) return absl::FailedPreconditionError("the interpreter is shutting down");
  // When runs are over is a matter of time, and what follows from it must not differ from process
  // to process. Where many steps have failed, those that are queued fail, too, and the next one is
  // to say so.
  if (several || ManyStepsFailed(state)) {
    for (const RunInFlight& f : state.in_flight.runs) WaitFor(state, *f.run).IgnoreError();
  }
  // Collect would resolve values that must be found lost here.
  if (failures != Failures::kTold) Collect(state);
  BindWaitingMarks(state);
  const int ended = ended_task < 0 ? kNoTask : state.tape->TaskNumber(ended_task);
  state.tape->EndFollowing();
  Live live = FindLive(*state.tape, {ended, asked});
  std::vector<StepPart> steps = TakeSteps(state);
  const std::unique_ptr<Tape> tape = std::exchange(state.tape, NewTape(state));
  if (!steps.empty() && ManyStepsFailed(state)) failures = Failures::kAll;
  const absl::Status lost = GiveUpDependents(state, *tape, failures, steps, live);
  NoteLostSteps(state.optimizer_steps, steps);
  if (!live.outputs.empty() || several) {
    SPMD_RETURN_IF_ERROR(Run(state, *tape, live, std::move(steps), why));
  }
  return lost;
}

}  // namespace

absl::Status Cut(SessionState& state, const std::string& why, int64_t ended_task, Failures failures,
                 const Buffer* asked) {
  const bool ends_step = EndWait(state);
  if (ends_step) asked = nullptr;
  const int64_t runs = state.diagnostics.statistics.runs;
  absl::Status status =
      CutTape(state, ends_step ? "optimizer step" : why, ended_task, failures, asked);
  if (ends_step && state.diagnostics.statistics.runs > runs) {
    state.diagnostics.steps.EndStep();
  }
  // Who tells of a failure counts what is lost with it.
  if (!status.ok() && failures != Failures::kTold) {
    status = SayLostSteps(status, TakeLostSteps(state));
  }
  return status;
}

absl::Status CutFor(SessionState& state, Buffer* buffer, const std::string& why) {
  return buffer->pending() ? Cut(state, why, -1, Failures::kNone, buffer) : absl::OkStatus();
}

}  // namespace spmd::trace
