// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/replay.h"

#include "absl/container/fixed_array.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/tape/filled_leaf.h"

namespace spmd::trace {

namespace {

bool SameMeta(const TensorMeta& meta, c10::TensorImpl& t) {
  if (t.dtype() != c10::scalarTypeToTypeMeta(meta.dtype) || t.is_wrapped_number()) return false;
  // There are few numbers, so a loop is faster than memcmp.
  const auto same = [](const Dims& a, at::IntArrayRef b) {
    if (a.size() != b.size()) return false;
    for (size_t d = 0; d < b.size(); ++d) {
      if (a[d] != b[d]) return false;
    }
    return true;
  };
  return same(meta.sizes, t.sizes()) && same(meta.strides, t.strides()) &&
         t.storage_offset() == meta.offset;
}

bool SameInts(const c10::IValue& value, at::IntArrayRef ints) {
  if (!value.isList()) return false;
  const auto items = value.toListRef();
  return std::equal(
      items.begin(), items.end(), ints.begin(), ints.end(),
      [](const c10::IValue& item, int64_t i) { return item.isInt() && item.toInt() == i; });
}

// One attempt to replay a call: everything is compared before anything is changed.
class Attempt {
 public:
  Attempt(SessionState& state, const TracedCall& call, const CallArguments& args)
      : tape_(*state.tape),
        lead_(tape_.lead()),
        call_(call),
        args_(args),
        buffers_(call.operands.size()) {
    if (call.num_inputs > 0) claims_.resize(call.end_slot - call.first_slot);
  }

  bool Agrees() {
    for (size_t i = 0; i < call_.args.size(); ++i) {
      const CallArgument& arg = call_.args[i];
      if (!Agrees(arg, i)) return GiveUp();
    }
    return (claimed_ == call_.num_inputs && (!call_.writes || SharesAlike())) || GiveUp();
  }

  void Run(ResultsTo results) {
    if (call_.has_scalars) AddScalars();
    for (const c10::Scalar& scalar : call_.scalars) tape_.AddScalar(scalar);
    tape_.Skip(call_, claims_);
    if (call_.binds) BindOperands();
    for (size_t k = 0; k < results.each.size(); ++k) {
      results.each[k] = MadeTensor(call_.results[k]);
    }
    if (results.tensors != nullptr) *results.tensors = MakeTensors(0, call_.results.size());
    if (results.list != nullptr) MakeResults(*results.list);
  }

 private:
  void AddScalars() {
    for (size_t i = 0; i < call_.args.size(); ++i) {
      const CallArgument& arg = call_.args[i];
      if (!arg.runtime) continue;
      if (arg.kind == CallArgument::Kind::kNumber) {
        tape_.AddScalar(NumberIn(args_.values[i].toTensor()));
      } else {
        tape_.AddScalars(args_.values[i]);
      }
    }
  }

  // True if the written Buffers are shared by the same operands as in the recording: two Buffers
  // may hold one value before the call, and not after it.
  bool SharesAlike() {
    static uint64_t last_call = 0;
    const uint64_t call = ++last_call;
    const auto& operands = call_.operands;
    for (size_t k = 0; k < buffers_.size(); ++k) {
      const CallOperand& operand = operands[k];
      if (operand.shares_with >= 0 && buffers_[k] != buffers_[operand.shares_with]) return false;
      if (operand.shares_with >= 0 || operand.becomes == kNoId) continue;
      if (buffers_[k]->written_in == call) return false;
      buffers_[k]->written_in = call;
    }
    for (size_t k = 0; k < buffers_.size(); ++k) {
      if (operands[k].shares_with >= 0 || operands[k].becomes != kNoId) continue;
      if (buffers_[k] != nullptr && buffers_[k]->written_in == call) return false;
    }
    return true;
  }

  void BindOperands() {
    for (size_t k = 0; k < buffers_.size(); ++k) {
      if (call_.operands[k].becomes == kNoId) continue;
      NoteGradient(*buffers_[k]);
      tape_.Bind(*buffers_[k], call_.operands[k].becomes);
    }
  }

  bool GiveUp() {
    for (const Tape::Claim& claim : claims_) {
      if (claim.value != nullptr) claim.value->tape = 0;
    }
    return false;
  }

  bool Agrees(const CallArgument& arg, size_t i) {
    if (const at::IntArrayRef* ints = args_.ints(i)) return AgreesInts(arg, *ints);
    if (const at::TensorList* tensors = args_.tensors(i)) return AgreesTensors(arg, *tensors);
    return AgreesArgument(arg, args_.values[i]);
  }

  // Lists of integers that are passed at run time are never given in this form.
  static bool AgreesInts(const CallArgument& arg, at::IntArrayRef ints) {
    return arg.kind == CallArgument::Kind::kFixed && SameInts(arg.value, ints);
  }

  bool AgreesTensors(const CallArgument& arg, at::TensorList tensors) {
    if (arg.kind != CallArgument::Kind::kOperands ||
        tensors.size() != static_cast<size_t>(arg.count)) {
      return false;
    }
    for (const at::Tensor& tensor : tensors) {
      if (!AgreesOperand(&tensor)) return false;
    }
    return true;
  }

  bool AgreesArgument(const CallArgument& arg, const c10::IValue& v) {
    switch (arg.kind) {
      case CallArgument::Kind::kOperand:
        return AgreesOperand(v.isTensor() ? &v.toTensor() : nullptr);
      case CallArgument::Kind::kOperands: {
        if (!v.isList()) return false;
        const auto items = v.toListRef();
        if (items.size() != static_cast<size_t>(arg.count)) return false;
        for (const c10::IValue& item : items) {
          if (!AgreesOperand(item.isTensor() ? &item.toTensor() : nullptr)) return false;
        }
        return true;
      }
      case CallArgument::Kind::kNumber: {
        if (!v.isTensor() || !v.toTensor().defined()) return false;
        const at::Tensor& t = v.toTensor();
        if (!t.unsafeGetTensorImpl()->is_wrapped_number() || !t.is_cpu()) return false;
        const c10::IValue number(NumberIn(t));
        return SameArgument(arg.value, number, !arg.free) &&
               (!arg.free || IsRuntimeValue(*arg.info, number));
      }
      case CallArgument::Kind::kFixed:
        if (arg.value.isInt()) return v.isInt() && arg.value.toInt() == v.toInt();
        return SameArgument(arg.value, v, /*value=*/true);
      case CallArgument::Kind::kRuntime:
        return SameArgument(arg.value, v, /*value=*/false) && IsRuntimeValue(*arg.info, v);
    }
    return false;
  }

  // `given` is null for None.
  bool AgreesOperand(const at::Tensor* given) {
    const CallOperand& operand = call_.operands[compared_];
    Buffer*& buffer = buffers_[compared_++];
    buffer = nullptr;
    const bool defined = given != nullptr && given->defined();
    if (operand.holds == CallOperand::Holds::kUndefined || !defined) {
      return operand.holds == CallOperand::Holds::kUndefined && !defined;
    }
    const at::Tensor& tensor = *given;
    buffer = Buffer::Of(tensor.unsafeGetTensorImpl()->unsafe_storage());
    return buffer != nullptr && !HandsMarkOn(*buffer) &&
           SameMeta(*operand.meta, *tensor.unsafeGetTensorImpl()) &&
           AgreesRecipe(operand, buffer, tensor) && AgreesValue(operand, buffer) &&
           AgreesMark(operand, *buffer);
  }

  // True if the call does more than was noted: it annotates what it reads, or its result gets the
  // mark.
  bool HandsMarkOn(const Buffer& buffer) const {
    if (const MarkNotes* const notes = NotesOf(buffer); notes != nullptr && !notes->parts.empty()) {
      return true;
    }
    return buffer.mark != nullptr && KeepsMarks(*call_.op);
  }

  // Requires: the tensor's metadata are those of the operand.
  static bool AgreesRecipe(const CallOperand& operand, Buffer* buffer, const at::Tensor& tensor) {
    if (operand.recipe == nullptr) return IsKnownBase(operand, buffer, tensor);
    const uint64_t serial = operand.meta->serial;
    RecipePtr* known = buffer->recipes.FindNoted(tensor, serial);
    if (known == nullptr) {
      if (IsBase(buffer->form, tensor)) return false;
      known = buffer->recipes.Find(tensor, serial);
    }
    if (known == nullptr) return false;
    if (*known == operand.recipe) return true;
    if (!SameRecipe(*known, operand.recipe)) return false;
    *known = operand.recipe;  // found faster the next time
    return true;
  }

  // Requires: the tensor's metadata are those of the operand. Whether they are the Buffer's form is
  // compared once for each Buffer.
  static bool IsKnownBase(const CallOperand& operand, Buffer* buffer, const at::Tensor& tensor) {
    const uint64_t serial = operand.meta->serial;
    if (buffer->form.known_as == serial && serial != 0)
      return !tensor.is_conj() && !tensor.is_neg();
    if (!IsBase(buffer->form, tensor)) return false;
    buffer->form.known_as = serial;
    return true;
  }

  bool AgreesValue(const CallOperand& operand, Buffer* buffer) {
    switch (operand.holds) {
      case CallOperand::Holds::kNothing:
        return buffer->holds_nothing();
      case CallOperand::Holds::kUnread:
        return !buffer->holds_nothing();
      default:
        break;
    }
    TapeId id = buffer->number();
    if (id == kNoId) {
      Value* const value = buffer->made();
      if (value == nullptr || !value->poison.ok()) return false;
      id = tape_.NumberOf(*value);
      if (id == kNoId) return !value->pending && Claim(operand, value, buffer);
    } else if (buffer->bound_on != tape_.number()) {
      return false;  // it is pending on the tape of another thread
    }
    return id == operand.value &&
           (operand.view == kNoId || !tape_.Moved(operand.value, operand.view));
  }

  // Claims an input that first occurs in this call.
  bool Claim(const CallOperand& operand, Value* value, const Buffer* buffer) {
    const int64_t k = operand.value - call_.first_slot;
    if (claims_.empty() || k < 0 || claims_[k].value != nullptr) return false;
    const Origin& origin = lead_.origins[operand.value];
    if (origin.input < 0 || !(lead_.types[operand.value] == value->type) ||
        !SameMark(lead_.input_marks[origin.input], tape_.CountedMark(buffer))) {
      return false;
    }
    tape_.Number(*value, operand.value);
    claims_[k] = {value, buffer};
    ++claimed_;
    return true;
  }

  bool AgreesMark(const CallOperand& operand, const Buffer& buffer) const {
    if (operand.becomes == kNoId) return true;
    if (operand.annotation < 0) return buffer.mark == nullptr;
    return SameMark(buffer.mark, lead_.annotations[operand.annotation].mark);
  }

  c10::IValue Made(const CallResult& result) {
    return result.kind == CallResult::Kind::kValue ? result.plain : MadeTensor(result);
  }

  at::Tensor MadeTensor(const CallResult& result) {
    switch (result.kind) {
      case CallResult::Kind::kUndefined:
      case CallResult::Kind::kValue:
        return at::Tensor();
      case CallResult::Kind::kOperand:
        return OperandTensor(result.operand);
      case CallResult::Kind::kView: {
        at::Tensor view = NewView(OperandTensor(result.operand), *result.meta);
        if (result.recipe != nullptr) {
          buffers_[result.operand]->recipes.Note(view, result.meta, result.recipe);
        }
        return view;
      }
      case CallResult::Kind::kFresh:
        break;
    }
    return MakeFresh(tape_, result);
  }

  const at::Tensor& OperandTensor(int32_t k) const {
    for (size_t i = 0;; ++i) {
      const CallArgument& arg = call_.args[i];
      if (arg.kind == CallArgument::Kind::kOperand && arg.first == k)
        return args_.values[i].toTensor();
      if (arg.kind == CallArgument::Kind::kOperands && k < arg.first + arg.count &&
          k >= arg.first) {
        const at::TensorList* const tensors = args_.tensors(i);
        return tensors != nullptr ? (*tensors)[k - arg.first]
                                  : args_.values[i].toListRef()[k - arg.first].toTensor();
      }
    }
  }

  void MakeResults(CallResults& results) {
    size_t next = 0;
    for (const int32_t size : call_.list_sizes) {
      if (size < 0) {
        results.push_back(Made(call_.results[next++]));
        continue;
      }
      results.emplace_back(MakeTensors(next, size));
      next += size;
    }
  }

  std::vector<at::Tensor> MakeTensors(size_t first, size_t count) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(count);
    for (size_t k = first; k < first + count; ++k) tensors.push_back(MadeTensor(call_.results[k]));
    return tensors;
  }

  Tape& tape_;
  const Recording& lead_;
  const TracedCall& call_;
  const CallArguments& args_;
  absl::FixedArray<Buffer*, 8> buffers_;  // by operand, of those compared
  size_t compared_ = 0;                   // operands
  std::vector<Tape::Claim> claims_;       // by slot of the call
  int claimed_ = 0;
};

// The number of calls at one place that are compared (they are mostly views, which record nothing).
constexpr size_t kLookAhead = 8;

}  // namespace

at::Tensor MakeFresh(Tape& tape, const CallResult& result) {
  const TensorMeta& memory = result.memory != nullptr ? *result.memory : *result.meta;
  Fresh fresh = NewMemory(memory);
  fresh.buffer->form.known_as = memory.serial;
  fresh.buffer->mark = result.mark;
  if (result.value != kNoId) tape.Bind(*fresh.buffer, result.value);
  if (result.memory == nullptr) return std::move(fresh.tensor);
  at::Tensor view = NewView(fresh.tensor, *result.meta);
  fresh.buffer->recipes.Note(view, result.meta, result.recipe);
  return view;
}

c10::Scalar NumberIn(const at::Tensor& wrapped) {
  const void* const data = wrapped.const_data_ptr();
  switch (wrapped.scalar_type()) {
    case at::kLong:
      return *static_cast<const int64_t*>(data);
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kBool:
      return *static_cast<const bool*>(data);
    default:
      return wrapped.item();
  }
}

namespace {

bool ReplayNext(SessionState& state, const OpInfo& op, const CallArguments& args,
                ResultsTo results) {
  Tape& tape = *state.tape;
  const auto& calls = tape.lead().calls;
  size_t& next = tape.next_call();
  while (next < calls.size() && calls[next]->first_event < tape.event()) ++next;
  const size_t end = std::min(calls.size(), next + kLookAhead);
  for (size_t k = next; k < end && calls[k]->first_event == tape.event(); ++k) {
    const TracedCall& call = *calls[k];
    if (call.op != &op) continue;
    if (call.default_dtype != at::typeMetaToScalarType(at::get_default_dtype())) return false;
    int64_t graph_task = -1;
    if (call.num_records > 0) {
      graph_task = GraphTask();
      if (tape.TaskNumber(graph_task) != call.task) continue;
    }
    Attempt attempt(state, call, args);
    if (!attempt.Agrees()) continue;
    next = k + 1;
    if (call.num_records > 0) state.micro_steps.Note(graph_task, call.updates_first);
    state.diagnostics.statistics.records += call.num_records;
    ++state.diagnostics.statistics.replayed;
    attempt.Run(results);
    return true;
  }
  return false;
}

}  // namespace

bool Replay(SessionState& state, const OpInfo& op, const CallArguments& args, ResultsTo results) {
  Tape& tape = *state.tape;
  if (tape.following()) return ReplayNext(state, op, args, results);
  if (tape.event() > 0) return false;
  RecordingPtr expected = state.prefixes.Expected(state.last_recording);
  if (expected == nullptr) return false;
  tape.Follow(std::move(expected), /*event=*/0);
  if (ReplayNext(state, op, args, results)) return true;
  tape.StopFollowing();
  return false;
}

}  // namespace spmd::trace
