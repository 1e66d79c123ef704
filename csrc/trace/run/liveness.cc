// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/liveness.h"

#include "csrc/trace/recorder/marks.h"

namespace spmd::trace {

namespace {

// True if the mark changed since the tape began, so that the layout of the input is not the
// Buffer's any more.
bool IsMarkedAnew(const Tape& tape, const Buffer& buffer, TapeId before) {
  const MarkPtr& mark = tape.inputs()[tape.origin(before).input].mark;
  return mark != buffer.mark && mark != nullptr && !SameMark(mark, buffer.mark);
}

// True if the Buffer may take another form. A mark of it, or of its parts, refers to the present
// form.
bool MayTakeForm(const Buffer& buffer) {
  return buffer.mark == nullptr && NotesOf(buffer) == nullptr;
}

// Smaller ones are reduced with others, which costs no message.
bool IsLarge(const TensorType& type) { return type.ByteSize() >= 4096; }

}  // namespace

Live FindLive(const Tape& tape, const CutOptions& cut) {
  Live live;
  std::vector<int> output_of(tape.num_values(), -1);
  std::vector<bool> claimed(tape.num_values(), false);
  const auto visit = [&](Buffer& buffer, TapeId before) {
    if (!buffer.pending()) return;
    const TapeId id = buffer.value()->id;
    int& k = output_of[id];
    if (k < 0) {
      k = static_cast<int>(live.outputs.size());
      const int record = tape.origin(id).record;
      const int task = record < 0 ? kNoTask : tape.records()[record].task;
      live.outputs.push_back({.value = id,
                              .may_stay_unreduced = cut.ended != kNoTask && task == cut.ended,
                              .may_be_apart = true,
                              .held = cut.asked != nullptr && task == 0 && IsLarge(tape.type(id))});
    }
    OutputSpec& output = live.outputs[k];
    if (!MayTakeForm(buffer)) output.may_be_apart = false;
    if (&buffer == cut.asked || buffer.is_gradient) output.held = false;
    if (buffer.like != nullptr && buffer.mark == nullptr && !output.may_stay_unreduced) {
      output.like = buffer.like;
    }
    // The input that it replaces, which has the same type and is replaced once.
    if (output.becomes == kNoId && before != kNoId && tape.type(before) == buffer.value()->type &&
        !IsMarkedAnew(tape, buffer, before)) {
      if (!claimed[before]) output.becomes = before;
      claimed[before] = true;
    }
  };
  ForEachBuffer(tape, visit, cut.first);
  for (OutputSpec& output : live.outputs) {
    if (output.becomes != kNoId) {  // it takes the layout of what it replaces
      output.like = nullptr;
      output.held = false;
    }
    if (output.like != nullptr) output.may_be_apart = false;
  }
  return live;
}

}  // namespace spmd::trace
