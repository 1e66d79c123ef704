// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/join_threads.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

absl::Status CutOf(SessionState& state, ThreadWork& work, const std::string& why) {
  const CurrentCall call = std::exchange(state.call, {});
  std::swap(static_cast<ThreadWork&>(state), work);
  const absl::Cleanup back = [&] {
    std::swap(static_cast<ThreadWork&>(state), work);
    state.call = call;
    internal::step_waits = state.step_waits;
  };
  return Cut(state, why);
}

// What has to move with a value of a tape.
struct Moving {
  TapeId id = kNoId;
  Needed needed;
  bool is_all = false;  // nothing else is pending on the tape
};

// None if something else needs a part of it, too, if a step of an optimizer or a backward pass
// computes it, or if the Buffer gets its old value back should the program fail.
std::optional<Moving> FindMoving(const ThreadWork& work, const Buffer& buffer) {
  const Tape& tape = *work.tape;
  Moving moving;
  std::vector<OutputSpec> others;
  bool overwrites = false;
  tape.bindings().ForEach([&](const Buffer& bound, TapeId before) {
    if (!bound.pending() || Tape::TapeOf(bound) != tape.number()) return;
    const TapeId id = bound.number() != kNoId ? bound.number() : bound.made()->id;
    if (&bound == &buffer) {
      moving.id = id;
      overwrites = before != kNoId;
    } else {
      others.push_back({id});
    }
  });
  if (moving.id == kNoId || overwrites) return std::nullopt;
  moving.is_all = others.empty() && work.optimizer_steps.recorded.empty() &&
                  work.optimizer_steps.open.empty() && !work.step_waits;
  moving.needed = NeededFor(tape, {OutputSpec{moving.id}});
  const Needed also = NeededFor(tape, others);
  for (size_t r = 0; r < tape.records().size(); ++r) {
    if (!moving.needed.records[r]) continue;
    const auto has = [&](const StepPart& part) { return part.Has(static_cast<int64_t>(r)); };
    if (also.records[r] || tape.records()[r].task != 0 ||
        absl::c_any_of(work.optimizer_steps.recorded, has) ||
        absl::c_any_of(work.optimizer_steps.open,
                       [&](const StepPart& p) { return p.begin <= static_cast<int64_t>(r); })) {
      return std::nullopt;
    }
  }
  return moving;
}

// Appends the records of `moving` to the session's tape, and binds the Buffer
// to their result.
void Move(SessionState& state, const Tape& from, const Moving& moving, Buffer& buffer) {
  Tape& tape = *state.tape;
  std::vector<TapeId> ids(from.num_values(), kNoId);
  const auto annotate = [&](TapeId id) {
    for (const Annotation& a : from.annotations()) {
      if (a.value == id) tape.Annotate(ids[id], a.mark);
    }
  };
  for (size_t i = 0; i < from.inputs().size(); ++i) {
    if (!moving.needed.inputs[i]) continue;
    const TapeInput& input = from.inputs()[i];
    ids[input.id] = tape.UseAlike(from.value(input.id), input);
    annotate(input.id);
  }
  for (size_t r = 0; r < from.records().size(); ++r) {
    if (!moving.needed.records[r]) continue;
    const Record& record = from.records()[r];
    absl::InlinedVector<TapeId, 4> operands;
    for (const TapeId id : record.operands) operands.push_back(id == kNoId ? kNoId : ids[id]);
    std::vector<TensorType> results;
    for (int k = 0; k < record.num_results; ++k) {
      results.push_back(from.type(record.first_result + k));
    }
    const TapeId first = Emit(state, *record.op, from.ArgumentsOf(static_cast<int>(r)),
                              std::move(operands), results, record.groups, record.updates_first);
    if (record.source >= 0 && !tape.following()) tape.SetLine(from.sources()[record.source]);
    for (int k = 0; k < record.num_results; ++k) {
      ids[record.first_result + k] = first + k;
      annotate(record.first_result + k);
    }
  }
  tape.Bind(buffer, ids[moving.id]);
}

}  // namespace

void TakeFromThread(Buffer& buffer) {
  SessionLock lock;
  const uint64_t tape = Tape::TapeOf(buffer);
  if (tape == lock->tape->number()) return;
  for (auto& [thread, work] : lock->threads.work) {
    if (work.tape->number() != tape) continue;
    // A replayed call reads its operands as inputs, or as values that have
    // numbers.
    lock->call.looked_at_values = true;
    ThrowIfError(RunWaitingStep(*lock));
    work.tape->StopFollowing();
    const std::optional<Moving> moving = FindMoving(work, buffer);
    if (!moving.has_value()) return ThrowIfError(CutOf(*lock, work, "another thread"));
    Move(*lock, *work.tape, *moving, buffer);
    if (moving->is_all) work.tape = NewTape(*lock);
    return;
  }
}

absl::Status CutOthers(SessionState& state, const std::string& why) {
  absl::Status first;
  for (auto& [thread, work] : state.threads.work) first.Update(CutOf(state, work, why));
  return first;
}

}  // namespace spmd::trace
