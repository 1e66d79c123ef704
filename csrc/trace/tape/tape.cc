// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/tape.h"

#include <algorithm>
#include <vector>

#include "absl/base/casts.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/tape/same_records.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

void MixType(Hash128& hash, const TensorType& type) {
  hash.Mix(static_cast<uint64_t>(type.dtype));
  hash.Mix(type.dims);
}

void MixMark(Hash128& hash, const Mark& mark) {
  hash.Mix(mark.mesh.device_ids());
  hash.Mix(mark.mesh.shape());
  for (const std::string& name : mark.mesh.axis_names()) hash.MixText(name);
  for (double bandwidth : mark.mesh.axis_bandwidths()) {
    hash.Mix(absl::bit_cast<uint64_t>(bandwidth));
  }
  hash.MixText(SpecToString(mark.spec));
}

uint64_t next_number = 1;
// The tapes that are alive: one for each thread, and those made for a moment. Never destroyed.
// Thread safety: guarded by the session's lock.
std::vector<Tape*>& LivingTapes() {
  static auto* const tapes = new std::vector<Tape*>;
  return *tapes;
}

const MarkPtr& MarkIn(const Buffer* from) {
  static const MarkPtr none;
  return from != nullptr ? from->mark : none;
}
const LayoutPtr& SettledIn(const Buffer* from) {
  static const LayoutPtr none;
  return from != nullptr ? from->settled : none;
}

// Null if there is none with this number any more.
Tape* LivingTape(uint64_t number) {
  const std::vector<Tape*>& tapes = LivingTapes();
  const auto it = std::find_if(tapes.rbegin(), tapes.rend(),
                               [&](const Tape* tape) { return tape->number() == number; });
  return it == tapes.rend() ? nullptr : *it;
}

}  // namespace

void AppendScalars(const c10::IValue& arg, std::vector<c10::Scalar>& out) {
  if (arg.isScalar()) {
    out.push_back(arg.toScalar());
  } else if (arg.isDoubleList()) {
    for (const double d : arg.toDoubleVector()) out.emplace_back(d);
  } else if (arg.isList()) {
    for (const c10::IValue& item : arg.toListRef()) AppendScalars(item, out);
  }
}

Tape::Tape(bool marks) : number_(next_number++), marks_(marks), bindings_(number_) {
  LivingTapes().push_back(this);
}

Tape::~Tape() { std::erase(LivingTapes(), this); }

// --- values ---

void Buffer::MakeValue() { Hold(LivingTape(bound_on)->value(number_)); }

ManualAxes Buffer::ManualOfNumber() const { return LivingTape(bound_on)->manual(number_); }

void Tape::Number(Value& value, TapeId id) {
  if (value.tape != 0 && value.tape != number_ && LivingTapes().size() > 1) {
    if (Tape* const other = LivingTape(value.tape)) other->renumbered_[&value] = value.id;
  }
  value.tape = number_;
  value.id = id;
}

// Values of replayed records are made when they are asked for.
const ValuePtr& Tape::MakeValue(TapeId id) const {
  ValuePtr& value = const_cast<Tape*>(this)->values_[id];
  value = c10::make_intrusive<Value>(now().types[id]);
  value->tape = number_;
  value->id = id;
  value->pending = true;
  value->manual = now().manual[id];
  return value;
}

bool Tape::IsHeldBy(const Buffer& buffer, TapeId id) const {
  if (buffer.number() != kNoId) return buffer.number() == id && buffer.bound_on == number_;
  const Value* const value = buffer.made();
  return value != nullptr && value->tape == number_ && value->id == id;
}

int64_t Tape::CountHolders(TapeId id) const {
  int64_t count = values_[id] != nullptr ? static_cast<int64_t>(values_[id].use_count()) - 1 : 0;
  bindings_.ForEach([&](const Buffer& buffer, TapeId) { count += buffer.number() == id ? 1 : 0; });
  return count;
}

const std::vector<c10::IValue>& Tape::ArgumentsOf(int record) const {
  for (const auto& [r, args] : other_starts_) {
    if (r == record) return args;
  }
  return now().records[record].args;
}

TapeId Tape::AddInput(const ValuePtr& value, const MarkPtr& mark, const LayoutPtr& settled) {
  SPMD_CHECK(!value->pending, "a pending value of another thread is no input: see JoinThreads");
  const TapeId id = static_cast<TapeId>(values_.size());
  Number(*value, id);
  values_.push_back(value);
  // The tape's own data for an input counts as this many bytes.
  constexpr int64_t kInput = 256;
  if (value->host.defined() && !value->host.is_meta()) {
    uploaded_bytes_ += static_cast<int64_t>(value->host.nbytes()) + kInput;
  }
  inputs_.push_back({.id = id,
                     .mark = mark,
                     .settled = settled,
                     .left = value->host.defined() ? nullptr : value->layout});
  return id;
}

void Tape::AddValues(int num_results) {
  values_.resize(values_.size() + num_results);
  ++num_records_;
}

// --- following ---

void Tape::Follow(RecordingPtr lead, int32_t event) {
  lead_ = std::move(lead);
  at_ = event;
  next_call_ = lead_->FirstCallAt(event);
  views_known_ = 0;
  own_ = Recording();
  values_.reserve(lead_->types.size());
  inputs_.reserve(lead_->input_marks.size());
  bindings_.Reserve(lead_->types.size());
}

void Tape::StopFollowing() {
  if (lead_ == nullptr) return;
  const RecordingPtr lead = std::move(lead_);
  lead_ = nullptr;
  own_ = lead->Prefix(at_);
  views_known_ = 0;
  if (!other_starts_.empty()) {
    LeaveOutMoved(own_);
    for (auto& [r, args] : other_starts_) own_.records[r].args = std::move(args);
    other_starts_.clear();
    Rehash();
  } else if (at_ > 0) {
    key_ = own_.keys.back();
  }
}

bool Tape::IsAmongMoved(TapeId base, TapeId view) const {
  while (view != base) {
    const int record = origin(view).record;
    if (record < 0) return false;
    for (const auto& [r, args] : other_starts_) {
      if (r == record) return true;
    }
    view = now().records[record].operands[0];
  }
  return false;
}

void Tape::LeaveOutMoved(Recording& prefix) const {
  std::erase_if(prefix.views, [this](const ViewRead& v) { return Moved(v.base, v.view); });
  std::erase_if(prefix.calls, [&](const std::shared_ptr<const TracedCall>& call) {
    for (const CallOperand& o : call->operands) {
      if (o.view != kNoId && Moved(o.value, o.view)) return true;
    }
    for (int32_t e = call->first_event; e < call->end_event; ++e) {
      const Event& event = prefix.events[e];
      if (event.kind != Event::Kind::kRecord) continue;
      for (const auto& [r, args] : other_starts_) {
        if (r == event.index) return true;
      }
    }
    return false;
  });
}

RecordingPtr Tape::Share() {
  own_.AlignCalls();
  auto recording = std::make_shared<const Recording>(std::move(own_));
  Follow(recording, static_cast<int32_t>(recording->events.size()));
  return recording;
}

void Tape::EndFollowing() {
  if (!AtEnd()) StopFollowing();
}

const Event* Tape::Next(Event::Kind kind) {
  if (lead_ == nullptr) return nullptr;
  if (static_cast<size_t>(at_) < lead_->events.size() && lead_->events[at_].kind == kind) {
    return &lead_->events[at_];
  }
  StopFollowing();
  return nullptr;
}

bool Tape::Agrees(const Record& theirs, const Record& record,
                  absl::Span<const TensorType> results) {
  uint64_t different = 0;
  if (theirs.num_results != static_cast<int>(results.size()) ||
      !SameButFor(record, theirs, different)) {
    return false;
  }
  const TensorType* const types = &lead_->types[theirs.first_result];
  for (size_t k = 0; k < results.size(); ++k) {
    if (!(types[k] == results[k])) return false;
  }
  if (different == 0) return true;
  if ((different & ~(StartArguments(record) & StartArguments(theirs))) != 0) return false;
  other_starts_.emplace_back(static_cast<int>(num_records_), record.args);
  return true;
}

void Tape::SkipWithInputs(const TracedCall& call, absl::Span<const Claim> claimed) {
  for (; at_ < call.end_event; ++at_) {
    const Event& event = lead_->events[at_];
    if (event.kind == Event::Kind::kRecord) {
      AddValues(event.num_results);
    } else if (event.kind == Event::Kind::kInput) {
      const Claim& claim = claimed[values_.size() - call.first_slot];
      AddInput(ValuePtr::reclaim_copy(claim.value), MarkIn(claim.from), SettledIn(claim.from));
    }
  }
}

// --- keys ---

void Tape::MixInput(const TensorType& type, ManualAxes manual, const MarkPtr& mark) {
  key_.Mix(0x1001);
  MixType(key_, type);
  if (manual != 0) key_.Mix(manual);
  if (mark != nullptr) MixMark(key_, *mark);
}

void Tape::MixRecord(const Record& record) {
  const uint64_t starts = StartArguments(record);
  key_.Mix(static_cast<uint64_t>(record.op->number) << 8 | 0x02);
  for (const TapeId id : record.operands) key_.Mix(static_cast<uint64_t>(id) + 7);
  for (const ir::OperandGroup& g : record.groups) {
    key_.Mix(static_cast<uint64_t>(g.begin) << 32 | static_cast<uint64_t>(g.size));
  }
  key_.Mix(static_cast<uint64_t>(record.task) << 1 | record.updates_first);
  for (size_t i = 0; i < record.args.size(); ++i) {
    const ArgInfo& arg = record.op->args[i];
    if (arg.kind != ArgKind::kOther) continue;
    const bool left_out = (starts >> i & 1) != 0;
    MixIValue(key_, record.args[i], !IsRuntimeValue(arg, record.args[i]) && !left_out);
  }
}

// The type distinguishes lengths, since starts and ends are not in the key, and what the
// default dtype makes of integers.
void Tape::MixResult(const TensorType& type) { MixType(key_, type); }

void Tape::MixAnnotation(const Annotation& annotation) {
  key_.Mix(0x1003);
  key_.Mix(static_cast<uint64_t>(annotation.value));
  MixMark(key_, *annotation.mark);
}

void Tape::Rehash() {
  key_ = Hash128();
  size_t value = 0;
  for (size_t e = 0; e < own_.events.size(); ++e) {
    const Event& event = own_.events[e];
    if (event.kind == Event::Kind::kInput) {
      MixInput(own_.types[value], own_.manual[value], own_.input_marks[event.index]);
      ++value;
    } else if (event.kind == Event::Kind::kRecord) {
      const Record& record = own_.records[event.index];
      MixRecord(record);
      for (int k = 0; k < record.num_results; ++k) MixResult(own_.types[value++]);
    } else {
      MixAnnotation(own_.annotations[event.index]);
    }
    own_.keys[e] = key_;
  }
}

// --- recording ---

TapeId Tape::Use(const ValuePtr& value, const Buffer* from) {
  return UseWith(value, MarkIn(from), SettledIn(from));
}

TapeId Tape::UseAlike(const ValuePtr& value, const TapeInput& input) {
  return UseWith(value, input.mark, input.settled);
}

TapeId Tape::UseWith(const ValuePtr& value, const MarkPtr& own, const LayoutPtr& settled) {
  if (const TapeId known = NumberOf(*value); known != kNoId) return known;
  const MarkPtr mark = marks_ ? own : nullptr;
  if (const Event* event = Next(Event::Kind::kInput)) {
    if (lead_->types[values_.size()] == value->type &&
        lead_->manual[values_.size()] == value->manual &&
        SameMark(lead_->input_marks[event->index], mark)) {
      ++at_;
      return AddInput(value, own, settled);
    }
    StopFollowing();
  }
  MixInput(value->type, value->manual, mark);
  own_.types.push_back(value->type);
  own_.manual.push_back(value->manual);
  own_.origins.push_back({-1, static_cast<int32_t>(inputs_.size())});
  own_.input_marks.push_back(mark);
  AddEvent(Event::Kind::kInput, inputs_.size());
  return AddInput(value, own, settled);
}

TapeId Tape::Append(Record record, absl::Span<const TensorType> results) {
  const TapeId first = static_cast<TapeId>(values_.size());
  if (const Event* event = Next(Event::Kind::kRecord)) {
    const Record& theirs = lead_->records[event->index];
    if (Agrees(theirs, record, results)) {
      for (size_t i = 0; i < record.args.size(); ++i) {
        if (IsRuntimeValue(record.op->args[i], record.args[i])) AddScalars(record.args[i]);
      }
      ++at_;
      AddValues(theirs.num_results);
      return first;
    }
    StopFollowing();
  }
  record.first_result = first;
  record.num_results = static_cast<int>(results.size());
  record.first_scalar = static_cast<int>(scalars_.size());
  for (size_t i = 0; i < record.args.size(); ++i) {
    if (IsRuntimeValue(record.op->args[i], record.args[i])) AddScalars(record.args[i]);
  }
  record.num_scalars = static_cast<int>(scalars_.size()) - record.first_scalar;
  ManualAxes manual = 0;
  for (const TapeId id : record.operands) manual |= id == kNoId ? 0 : own_.manual[id];
  if (const BorderCall* const border = BorderOf(*record.op, record.args)) {
    manual = border->After(manual);
  }
  MixRecord(record);
  for (const TensorType& type : results) {
    MixResult(type);
    own_.types.push_back(type);
    own_.manual.push_back(manual);
    own_.origins.push_back({static_cast<int32_t>(own_.records.size()), -1});
  }
  AddValues(record.num_results);
  own_.records.push_back(std::move(record));
  AddEvent(Event::Kind::kRecord, own_.records.size() - 1);
  return first;
}

void Tape::Annotate(TapeId value, const MarkPtr& mark) {
  ++num_annotations_;
  if (const Event* event = Next(Event::Kind::kAnnotation)) {
    const Annotation& theirs = lead_->annotations[event->index];
    if (theirs.value == value && SameMark(theirs.mark, mark)) {
      ++at_;
      return;
    }
    StopFollowing();
  }
  own_.annotations.push_back({value, mark});
  MixAnnotation(own_.annotations.back());
  AddEvent(Event::Kind::kAnnotation, own_.annotations.size() - 1);
}

void Tape::AddEvent(Event::Kind kind, size_t index) {
  const bool record = kind == Event::Kind::kRecord;
  own_.events.push_back(
      {kind, static_cast<int32_t>(index), record ? own_.records[index].num_results : 0});
  own_.keys.push_back(key_);
  ++at_;
}

void Tape::AddCall(TracedCall call) {
  // Calls are ordered by their first event. If the tape stopped following within this call, those
  // that it has followed until then may begin inside; they are not this tape's.
  while (!own_.calls.empty() && own_.calls.back()->first_event > call.first_event) {
    own_.calls.pop_back();
  }
  own_.calls.push_back(std::make_shared<const TracedCall>(std::move(call)));
}

std::optional<TapeId> Tape::FindView(TapeId base, const Recipe* recipe) {
  const std::vector<ViewRead>& all = now().views;
  for (; views_known_ < all.size() && all[views_known_].event <= at_; ++views_known_) {
    const ViewRead& v = all[views_known_];
    if (Moved(v.base, v.view)) continue;
    if (views_.try_emplace({v.base, v.recipe.get()}, v.view).second) recipes_.push_back(v.recipe);
  }
  const auto it = views_.find({base, recipe});
  if (it == views_.end()) return std::nullopt;
  return it->second;
}

void Tape::RememberView(TapeId base, const RecipePtr& recipe, TapeId view) {
  views_[{base, recipe.get()}] = view;
  recipes_.push_back(recipe);
  if (!following()) own_.views.push_back({base, recipe, view, at_});
}

void Tape::Bind(Buffer& buffer, TapeId id) {
  if (buffer.bound_on != number_) NoteBinding(buffer);
  ++num_rebound_;
  if (values_[id] != nullptr) {
    buffer.Bind(values_[id]);
  } else {
    buffer.Bind(id);
  }
}

void Tape::NoteBinding(Buffer& buffer) {
  const bool held = !buffer.holds_nothing() && !buffer.pending();
  bindings_.Add(buffer, held ? Use(buffer.value(), &buffer) : kNoId);
}

void Tape::SetLine(std::string line) {
  if (line.empty()) return;
  if (own_.sources.empty() || own_.sources.back() != line) own_.sources.push_back(std::move(line));
  own_.records.back().source = static_cast<int32_t>(own_.sources.size()) - 1;
}

int Tape::TaskNumber(int64_t graph_task) {
  if (graph_task < 0) return 0;
  if (!tasks_.empty() && tasks_.back() == graph_task) return static_cast<int>(tasks_.size());
  const auto it = std::find(tasks_.begin(), tasks_.end(), graph_task);
  if (it != tasks_.end()) return static_cast<int>(it - tasks_.begin()) + 1;
  tasks_.push_back(graph_task);
  return static_cast<int>(tasks_.size());
}

}  // namespace spmd::trace
