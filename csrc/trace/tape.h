// SPDX-License-Identifier: Apache-2.0
// What was asked for and not yet run: records over numbered values, inputs first met as operands.
//
// Keys. `strict()` hashes ops, wiring, structural arguments, the types of inputs, marks. `loose()`
// is the same without starts (csrc/trace/starts.h): tapes that agree in it differ in where they cut
// only.
//
// Following. A tape that begins like a recording of an earlier one stands at one of its events and
// compares what comes with what came then; nothing is stored, hashed or converted while they agree
// (but in starts). At the first difference, and when `records()` and the like are wanted before the
// end (`StopFollowing`), the tape takes a copy of what it has followed so far.
// Thread safety: guarded by the session's lock. One tape per session: engine threads, where
// there are any, append to the tape of the thread that called backward.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/bindings.h"
#include "csrc/trace/buffer.h"
#include "csrc/trace/hash.h"
#include "csrc/trace/record.h"
#include "csrc/trace/recording.h"

namespace spmd::trace {

struct TapeInput {
  TapeId id;
  MarkPtr mark;  // of the Buffer it was read from
  LayoutPtr settled;
};

// Bit by bit: the value of argument i is passed when the program runs.
bool IsRuntimeValue(const ArgInfo& info, const c10::IValue& arg);
// The run-time scalars in `arg`, in order.
void AppendScalars(const c10::IValue& arg, std::vector<c10::Scalar>& out);

class Tape {
 public:
  Tape();

  bool empty() const { return num_records_ == 0; }
  uint64_t number() const { return number_; }
  size_t num_values() const { return values_.size(); }
  int64_t num_records() const { return num_records_; }
  // Of inputs that were on the host when they were met.
  int64_t uploaded_bytes() const { return uploaded_bytes_; }
  const std::vector<TapeInput>& inputs() const { return inputs_; }
  const Bindings& bindings() const { return bindings_; }
  const std::vector<c10::Scalar>& scalars() const { return scalars_; }
  // The pending value itself, made when it is asked for.
  const ValuePtr& value(TapeId id) const {
    return values_[id] != nullptr ? values_[id] : MakeValue(id);
  }
  // `buffer` holds the value `id` of this tape.
  bool IsHeldBy(const Buffer& buffer, TapeId id) const;
  // How many hold the value but the tape: Buffers, mostly.
  int64_t CountHolders(TapeId id) const;
  const TensorType& type(TapeId id) const { return now().types[id]; }
  const Origin& origin(TapeId id) const { return now().origins[id]; }
  // The arguments of a record, starts as they are now.
  const std::vector<c10::IValue>& ArgumentsOf(int record) const;

  // Requires, for these: not following, or at the end of what is followed.
  const Recording& recording() const { return now(); }
  const std::vector<Record>& records() const { return now().records; }
  const std::vector<Annotation>& annotations() const { return now().annotations; }
  const std::vector<std::string>& sources() const { return now().sources; }
  Hash128 strict() const;
  Hash128 loose() const;

  // --- following ---
  bool following() const { return lead_ != nullptr; }
  // Follows `lead`, whose first `event` events this tape has recorded itself.
  void Follow(RecordingPtr lead, int32_t event);
  // Requires: following.
  const Recording& lead() const { return *lead_; }
  // False in the midst of what is followed: records may be looked at without leaving it.
  bool AtEnd() const {
    return lead_ == nullptr || static_cast<size_t>(at_) == lead_->events.size();
  }
  int32_t event() const { return at_; }
  // The next call that may be replayed.
  size_t& next_call() { return next_call_; }
  void StopFollowing();
  // Gives away what it has recorded, and stands at the end of it. Requires: not following.
  RecordingPtr Share();
  // Stops unless all of the lead was followed to its end.
  void EndFollowing();
  // A view of `base` that a record made which differs from the lead's in where it cuts: what the
  // lead knows about it is not true here.
  bool Moved(TapeId base, TapeId view) const {
    return !other_starts_.empty() && IsAmongMoved(base, view);
  }
  // Goes over the events of a call; `claimed[i]` is the value of the slot that is its i-th (null
  // where it is no input), with the Buffer it was read from.
  struct Claim {
    Value* value = nullptr;
    const Buffer* from = nullptr;
  };
  void Skip(const TracedCall& call, absl::Span<const Claim> claimed) {
    if (call.num_inputs > 0) return SkipWithInputs(call, claimed);
    // One by one: mostly there is one.
    while (values_.size() < static_cast<size_t>(call.end_slot)) values_.emplace_back();
    num_records_ += call.num_records;
    at_ = call.end_event;
  }
  void AddScalars(const c10::IValue& arg) { AppendScalars(arg, scalars_); }
  void AddScalar(const c10::Scalar& scalar) { scalars_.push_back(scalar); }
  // Notes a call that was recorded event by event.
  void AddCall(TracedCall call);

  // --- recording ---
  // The number of a value here; an input if it is not one yet. `from`: the Buffer that it is read
  // from, whose mark counts, or null.
  TapeId Use(const ValuePtr& value, const Buffer* from);
  // Appends; fills in first_result, scalars, hashes. The results are new pending values.
  TapeId Append(Record record, absl::Span<const TensorType> results);
  // A value as it reads through a recipe, remembered.
  std::optional<TapeId> FindView(TapeId base, const Recipe* recipe);
  void RememberView(TapeId base, const RecipePtr& recipe, TapeId view);
  // Binds `buffer` to the value `id`.
  void Bind(Buffer& buffer, TapeId id);
  void Annotate(TapeId value, const MarkPtr& mark);
  // The user's line of the last record; "" is none.
  void SetLine(std::string line);
  int TaskNumber(int64_t graph_task);

 private:
  const Recording& now() const { return lead_ != nullptr ? *lead_ : own_; }
  // The next event of the lead if it is of this kind; else null, and nothing is followed any more.
  const Event* Next(Event::Kind kind);
  const ValuePtr& MakeValue(TapeId id) const;
  void SkipWithInputs(const TracedCall& call, absl::Span<const Claim> claimed);
  bool IsAmongMoved(TapeId base, TapeId view) const;
  TapeId AddInput(const ValuePtr& value, const Buffer* from);
  void NoteBinding(Buffer& buffer);
  void AddValues(int num_results);
  bool Agrees(const Record& theirs, const Record& record, absl::Span<const TensorType> results);
  void AddEvent(Event::Kind kind, size_t index);
  void MixInput(const TensorType& type, const MarkPtr& mark);
  void MixRecord(const Record& record);
  void MixResult(const TensorType& type);
  void MixAnnotation(const Annotation& annotation);
  void Rehash();
  // Drops views and calls in which a record with other starts had a part.
  void LeaveOutMoved(Recording& prefix) const;

  uint64_t number_;
  std::vector<ValuePtr> values_;  // null where nobody has asked
  std::vector<TapeInput> inputs_;
  Bindings bindings_;
  std::vector<c10::Scalar> scalars_;
  std::vector<int64_t> tasks_;
  int64_t num_records_ = 0;
  int64_t uploaded_bytes_ = 0;
  absl::flat_hash_map<std::pair<TapeId, const Recipe*>, TapeId> views_;
  size_t views_known_ = 0;          // how many of the lead's are in views_
  std::vector<RecipePtr> recipes_;  // keeps the keys of views_ alive

  Recording own_;  // empty while following
  Hash128 strict_;
  Hash128 loose_;

  RecordingPtr lead_;
  int32_t at_ = 0;  // events followed
  size_t next_call_ = 0;
  // Records that differ from the lead's in where they cut, with their own arguments.
  std::vector<std::pair<int, std::vector<c10::IValue>>> other_starts_;
};

}  // namespace spmd::trace
