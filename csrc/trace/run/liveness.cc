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

}  // namespace

Live FindLive(const Tape& tape, int ended) {
  Live live;
  std::vector<int> output_of(tape.num_values(), -1);
  std::vector<bool> claimed(tape.num_values(), false);
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    if (!buffer.pending()) return;
    const TapeId id = buffer.value()->id;
    int& k = output_of[id];
    if (k < 0) {
      k = static_cast<int>(live.outputs.size());
      const int record = tape.origin(id).record;
      live.outputs.push_back(
          {id, kNoId, ended != kNoTask && record >= 0 && tape.records()[record].task == ended,
           /*may_be_apart=*/true});
    }
    if (!MayTakeForm(buffer)) live.outputs[k].may_be_apart = false;
    // The input that it replaces, which has the same type and is replaced once.
    if (live.outputs[k].becomes == kNoId && before != kNoId &&
        tape.type(before) == buffer.value()->type && !IsMarkedAnew(tape, buffer, before)) {
      if (!claimed[before]) live.outputs[k].becomes = before;
      claimed[before] = true;
    }
  });
  return live;
}

}  // namespace spmd::trace
