// SPDX-License-Identifier: Apache-2.0
// What was called and has not been run: records over numbered values, and the inputs that first
// occurred as operands.
//
// The key of a tape hashes ops, wiring, structural arguments but starts (csrc/trace/tape/starts.h),
// the types of inputs, and marks (but those of inputs where there is one device only: they shard
// nothing). So tapes with the same key differ in their starts only.
//
// Following. A tape that begins like a recording of an earlier tape is at one of its events and
// compares what is called with what was called then; nothing is stored, hashed or converted while
// they agree, except in starts. At the first difference, and when `records()` and the like are
// wanted before the end (`StopFollowing`), the tape copies what it has followed so far.
// Thread safety: guarded by the session's lock. Each thread has a tape
// (csrc/trace/session/threads.h); a backward pass runs on the thread that asks for it.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/op/hash.h"
#include "csrc/trace/tape/record.h"
#include "csrc/trace/tape/recording.h"
#include "csrc/trace/value/bound_buffers.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct TapeInput {
  TapeId id;
  MarkPtr mark;  // of the Buffer from which it was read
  LayoutPtr settled;
  // The layout in which an earlier program left the value; null for data of the host, which is
  // uploaded as the program wants it.
  LayoutPtr left;
  // The layout that the program takes as it is. A value that the program overwrites is brought
  // into the layout of its new value once, unless it has settled.
  const LayoutPtr& LayoutToTake(bool overwritten) const {
    return settled != nullptr || overwritten ? settled : left;
  }
};

// The run-time scalars in `arg`, in order.
void AppendScalars(const c10::IValue& arg, std::vector<c10::Scalar>& out);

class Tape {
 public:
  // `marks` says whether the marks of inputs count: where there is one device for good, they shard
  // nothing.
  explicit Tape(bool marks = true);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool empty() const { return num_records_ == 0; }
  uint64_t number() const { return number_; }
  size_t num_values() const { return values_.size(); }
  int64_t num_records() const { return num_records_; }
  // Grows with everything on which the program of a cut now depends: values, marks, and the Buffers
  // that hold values.
  int64_t changes() const {
    return static_cast<int64_t>(num_values()) + num_annotations_ + num_rebound_ +
           bindings_.changes();
  }
  // The bytes of inputs that were on the host when they first occurred.
  int64_t uploaded_bytes() const { return uploaded_bytes_; }
  const std::vector<TapeInput>& inputs() const { return inputs_; }
  const Bindings& bindings() const { return bindings_; }
  // Calls `all_ended` when the Buffers with these indices among the bindings have ended.
  void WatchBindings(absl::Span<const TapeId> indices, void (*all_ended)()) {
    bindings_.Watch(indices, all_ended);
  }
  const std::vector<c10::Scalar>& scalars() const { return scalars_; }
  // The pending Value, which is made when it is asked for.
  const ValuePtr& value(TapeId id) const {
    return values_[id] != nullptr ? values_[id] : MakeValue(id);
  }
  // The number of `value` on this tape, or kNoId.
  TapeId NumberOf(const Value& value) const {
    if (value.tape == number_) return value.id;
    if (renumbered_.empty()) return kNoId;
    const auto it = renumbered_.find(&value);
    return it == renumbered_.end() ? kNoId : it->second;
  }
  // Gives `value` the number `id` on this tape. If it is an input of another thread's tape, that
  // one remembers its number.
  void Number(Value& value, TapeId id);
  // The tape that `buffer`, which holds a pending value, is pending on.
  static uint64_t TapeOf(const Buffer& buffer) {
    return buffer.number() != kNoId ? buffer.bound_on : buffer.made()->tape;
  }
  // True if `buffer` holds the value `id` of this tape.
  bool IsHeldBy(const Buffer& buffer, TapeId id) const;
  // The number of holders of the value other than the tape; mostly Buffers.
  int64_t CountHolders(TapeId id) const;
  const TensorType& type(TapeId id) const { return now().types[id]; }
  const Origin& origin(TapeId id) const { return now().origins[id]; }
  ManualAxes manual(TapeId id) const { return now().manual[id]; }
  // The layout that the program takes input `k` in. That of a device's own values has no other.
  const LayoutPtr& LayoutToTake(size_t k, bool overwritten) const {
    const TapeInput& input = inputs_[k];
    return manual(input.id) != 0 ? values_[input.id]->layout : input.LayoutToTake(overwritten);
  }
  // The arguments of a record, with this tape's starts.
  const std::vector<c10::IValue>& ArgumentsOf(int record) const;

  // Requires, for these: the tape is not following, or is at the end of what it follows.
  const Recording& recording() const { return now(); }
  const std::vector<Record>& records() const { return now().records; }
  const std::vector<Annotation>& annotations() const { return now().annotations; }
  const std::vector<std::string>& sources() const { return now().sources; }
  Hash128 key() const { return lead_ == nullptr ? key_ : lead_->keys.back(); }

  // --- following ---
  bool following() const { return lead_ != nullptr; }
  // Follows `lead`, whose first `event` events this tape has recorded itself.
  void Follow(RecordingPtr lead, int32_t event);
  // Requires: following.
  const RecordingPtr& lead_pointer() const { return lead_; }
  const Recording& lead() const { return *lead_; }
  // False before the end of what the tape follows. At the end, records may be read without leaving
  // the lead.
  bool AtEnd() const {
    return lead_ == nullptr || static_cast<size_t>(at_) == lead_->events.size();
  }
  int32_t event() const { return at_; }
  // The next call that may be replayed.
  size_t& next_call() { return next_call_; }
  void StopFollowing();
  // Gives its recording away and follows it, at its end. Requires: not following.
  RecordingPtr Share();
  // Stops following unless the lead was followed to its end.
  void EndFollowing();
  // True if `view` is a view of `base` that was made by a record whose starts differ from the
  // lead's: what the lead knows about the view is then not true here.
  bool Moved(TapeId base, TapeId view) const {
    return !other_starts_.empty() && IsAmongMoved(base, view);
  }
  // Replays the events of a call. claimed[i] is the input that takes the call's slot i (null if the
  // slot is not an input), with the Buffer from which it was read.
  struct Claim {
    Value* value = nullptr;
    const Buffer* from = nullptr;
  };
  void Skip(const TracedCall& call, absl::Span<const Claim> claimed) {
    if (call.num_inputs > 0) return SkipWithInputs(call, claimed);
    // One by one, since there is mostly one.
    while (values_.size() < static_cast<size_t>(call.end_slot)) values_.emplace_back();
    num_records_ += call.num_records;
    at_ = call.end_event;
  }
  // True if a record differs from the lead's in its starts.
  bool HasOtherStarts() const { return !other_starts_.empty(); }
  void AddScalars(const c10::IValue& arg) { AppendScalars(arg, scalars_); }
  void AddScalar(const c10::Scalar& scalar) { scalars_.push_back(scalar); }
  // Notes a call that was recorded event by event.
  void AddCall(TracedCall call);

  // The mark of an input that is read from `from` as it counts in keys, or null.
  const MarkPtr& CountedMark(const Buffer* from) const {
    static const MarkPtr none;
    return marks_ && from != nullptr ? from->mark : none;
  }
  void LeaveOutMarks() { marks_ = false; }

  // --- recording ---
  // The number of `value` on this tape; it becomes an input if it has none. `from` is the Buffer
  // from which it is read, whose mark counts, or null.
  TapeId Use(const ValuePtr& value, const Buffer* from);
  // The same for a value that another tape has read as `input`.
  TapeId UseAlike(const ValuePtr& value, const TapeInput& input);
  // Appends a record; fills in first_result, scalars and hashes. The results are new pending
  // values.
  TapeId Append(Record record, absl::Span<const TensorType> results);
  // The number of the value that reading `base` through `recipe` gave, if it is remembered.
  std::optional<TapeId> FindView(TapeId base, const Recipe* recipe);
  void RememberView(TapeId base, const RecipePtr& recipe, TapeId view);
  // Binds `buffer` to the value `id`.
  void Bind(Buffer& buffer, TapeId id);
  void Annotate(TapeId value, const MarkPtr& mark);
  // Sets the user's line of the last record; "" for none.
  void SetLine(std::string line);
  int TaskNumber(int64_t graph_task);

 private:
  const Recording& now() const { return lead_ != nullptr ? *lead_ : own_; }
  // The next event of the lead if it is of this kind; otherwise stops following and returns null.
  const Event* Next(Event::Kind kind);
  const ValuePtr& MakeValue(TapeId id) const;
  void SkipWithInputs(const TracedCall& call, absl::Span<const Claim> claimed);
  bool IsAmongMoved(TapeId base, TapeId view) const;
  TapeId UseWith(const ValuePtr& value, const MarkPtr& mark, const LayoutPtr& settled);
  TapeId AddInput(const ValuePtr& value, const MarkPtr& mark, const LayoutPtr& settled);
  void NoteBinding(Buffer& buffer);
  void AddValues(int num_results);
  bool Agrees(const Record& theirs, const Record& record, absl::Span<const TensorType> results);
  void AddEvent(Event::Kind kind, size_t index);
  void MixInput(const TensorType& type, ManualAxes manual, const MarkPtr& mark);
  void MixRecord(const Record& record);
  void MixResult(const TensorType& type);
  void MixAnnotation(const Annotation& annotation);
  void Rehash();
  // Drops the views and calls in which a record with other starts took part.
  void LeaveOutMoved(Recording& prefix) const;

  uint64_t number_;
  bool marks_;                    // whether the marks of inputs count
  std::vector<ValuePtr> values_;  // null until asked for
  std::vector<TapeInput> inputs_;
  // Inputs that are inputs of another thread's tape, too, which has numbered them later.
  absl::flat_hash_map<const Value*, TapeId> renumbered_;
  Bindings bindings_;
  std::vector<c10::Scalar> scalars_;
  std::vector<int64_t> tasks_;
  int64_t num_records_ = 0;
  int64_t num_annotations_ = 0, num_rebound_ = 0;
  int64_t uploaded_bytes_ = 0;
  absl::flat_hash_map<std::pair<TapeId, const Recipe*>, TapeId> views_;
  size_t views_known_ = 0;          // how many of the lead's views are in views_
  std::vector<RecipePtr> recipes_;  // keeps the keys of views_ alive

  Recording own_;  // empty while following
  Hash128 key_;

  RecordingPtr lead_;
  int32_t at_ = 0;  // events followed
  size_t next_call_ = 0;
  // Records whose starts differ from the lead's, with their own arguments.
  std::vector<std::pair<int, std::vector<c10::IValue>>> other_starts_;
};

}  // namespace spmd::trace
