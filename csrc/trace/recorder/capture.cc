// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/capture.h"

#include <algorithm>

#include "csrc/trace/op/attribute.h"
#include "csrc/trace/recorder/replay.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

bool IsWrappedNumber(const c10::IValue& v) {
  return v.isTensor() && v.toTensor().defined() &&
         v.toTensor().unsafeGetTensorImpl()->is_wrapped_number() && v.toTensor().is_cpu();
}

bool IsPlain(const at::Tensor& t) { return !t.is_complex() && !t.is_conj() && !t.is_neg(); }

// The argument information that decides whether argument `i` is passed at run time: that of the op
// that is recorded.
const ArgInfo* DecidingInfo(const OpInfo& op, size_t i, bool number) {
  const OpInfo* twin = op.functional();
  if (twin == nullptr) return number ? nullptr : &op.args[i];
  const int k = twin->FindArg(op.args[i].name);
  if (number) {
    const OpInfo* scalar = k >= 0 ? twin->WithScalar(k) : nullptr;
    return scalar != nullptr ? &scalar->args[k] : nullptr;
  }
  return k >= 0 ? &twin->args[k] : &op.args[i];
}

bool SameScalar(const c10::Scalar& a, const c10::Scalar& b) {
  return SameArgument(c10::IValue(a), c10::IValue(b), /*value=*/true);
}

}  // namespace

CallCapture::CallCapture(SessionState& state, const OpInfo& op, const torch::jit::Stack& stack)
    : state_(state), op_(op) {
  if (state.call.capturing || !op.replayable) return;
  active_ = state.call.capturing = true;
  state.call.looked_at_values = false;
  state.call.annotations = 0;
  state.call.result_mark = nullptr;
  tape_ = state.tape->number();
  stack_below_ = stack.size() - op.args.size();
  args_.assign(stack.begin() + static_cast<int64_t>(stack_below_), stack.end());
  call_.op = &op;
  call_.default_dtype = at::typeMetaToScalarType(at::get_default_dtype());
  call_.first_event = state.tape->event();
  call_.first_slot = static_cast<TapeId>(state.tape->num_values());
  first_scalar_ = state.tape->scalars().size();
  for (size_t i = 0; i < args_.size() && active_; ++i) active_ = TakeArgument(op.args[i], args_[i]);
  if (!active_) state.call.capturing = false;
}

CallCapture::~CallCapture() {
  if (active_) state_.call.capturing = false;
}

bool CallCapture::TakeArgument(const ArgInfo& info, const c10::IValue& arg) {
  using Kind = CallArgument::Kind;
  CallArgument& taken = call_.args.emplace_back();
  taken.first = static_cast<int32_t>(before_.size());
  if (info.kind == ArgKind::kTensor && IsWrappedNumber(arg)) {
    taken.kind = Kind::kNumber;
    taken.value = NumberIn(arg.toTensor());
  } else if (info.kind == ArgKind::kTensor) {
    taken.kind = Kind::kOperand;
    return TakeOperand(arg);
  } else if (info.kind == ArgKind::kTensorList && arg.isList()) {
    taken.kind = Kind::kOperands;
    for (const c10::IValue& item : arg.toListRef()) {
      if (!TakeOperand(item)) return false;
    }
    taken.count = static_cast<int32_t>(before_.size()) - taken.first;
  } else {
    taken.value = arg;
    return info.kind != ArgKind::kGenerator || arg.isNone();
  }
  return true;
}

bool CallCapture::TakeOperand(const c10::IValue& arg) {
  CallOperand& operand = call_.operands.emplace_back();
  Before& before = before_.emplace_back();
  if (!arg.isTensor() || !arg.toTensor().defined()) return arg.isNone() || arg.isTensor();
  before.tensor = arg.toTensor();
  if (!Buffer::IsOurs(before.tensor)) return false;
  before.buffer = BufferOf(before.tensor);
  before.value = before.buffer->value();
  before.generation = before.buffer->generation;
  operand.meta = Shared(TensorMeta::Of(before.tensor));
  return true;
}

bool CallCapture::FinishOperand(size_t k) {
  using Holds = CallOperand::Holds;
  CallOperand& operand = call_.operands[k];
  const Before& before = before_[k];
  if (before.buffer == nullptr) return true;
  if (!(TensorMeta::Of(before.tensor) == *operand.meta) ||
      BufferOf(before.tensor) != before.buffer) {
    return false;  // the op changes the tensor itself
  }
  const Tape& tape = *state_.tape;
  operand.recipe = RecipeOf(before.buffer, before.tensor);
  operand.holds = Holds::kNothing;
  if (before.value != nullptr) {
    const TapeId number = tape.NumberOf(*before.value);
    const bool known = number != kNoId;
    operand.holds = known ? Holds::kValue : Holds::kUnread;
    if (known) operand.value = number;
    if (known && operand.recipe != nullptr) {
      operand.view = state_.tape->FindView(operand.value, operand.recipe.get()).value_or(kNoId);
    }
  }
  if (before.buffer->generation == before.generation) return true;
  const ValuePtr& value = before.buffer->value();
  if (value == nullptr || value->tape != tape.number()) return false;
  operand.becomes = value->id;
  call_.binds = true;
  if (before.buffer->mark == nullptr) return true;
  const std::vector<Annotation>& annotations = tape.annotations();
  for (size_t a = annotations.size(); a-- > 0;) {
    if (annotations[a].value != value->id) continue;
    operand.annotation = static_cast<int32_t>(a);
    return true;
  }
  return false;
}

void CallCapture::NoteShared() {
  absl::flat_hash_map<const Buffer*, int32_t> first;
  for (size_t k = 0; k < before_.size(); ++k) {
    if (before_[k].buffer == nullptr) continue;
    const auto [it, is_first] = first.try_emplace(before_[k].buffer, static_cast<int32_t>(k));
    if (!is_first) call_.operands[k].shares_with = it->second;
  }
}

// Checks that every input that first occurred in the call belongs to an operand, and that every
// annotation does, or follows from the arguments.
bool CallCapture::FinishEvents() {
  const Recording& recording = state_.tape->recording();
  call_.end_event = state_.tape->event();
  int annotations = -state_.call.annotations;
  for (const CallOperand& o : call_.operands) annotations -= o.annotation >= 0;
  std::vector<bool> held(recording.types.size() - call_.first_slot);
  for (const CallOperand& o : call_.operands) {
    if (o.value >= call_.first_slot) held[o.value - call_.first_slot] = true;
  }
  TapeId slot = call_.first_slot;
  for (int32_t e = call_.first_event; e < call_.end_event; ++e) {
    const Event& event = recording.events[e];
    if (event.kind == Event::Kind::kAnnotation) {
      ++annotations;
    } else if (event.kind == Event::Kind::kInput) {
      if (!held[slot++ - call_.first_slot]) return false;
      ++call_.num_inputs;
    } else {
      const Record& record = recording.records[event.index];
      slot += record.num_results;
      ++call_.num_records;
      call_.task = record.task;
      call_.updates_first |= record.updates_first;
    }
  }
  call_.end_slot = slot;
  return annotations == 0;
}

// The recorded scalars are those among the arguments, in their order; or a handler derived them
// from arguments that are equal each time.
bool CallCapture::FinishArguments() {
  std::vector<c10::Scalar> given, free;
  for (size_t i = 0; i < call_.args.size(); ++i) {
    CallArgument& arg = call_.args[i];
    const bool number = arg.kind == CallArgument::Kind::kNumber;
    if (!number &&
        (arg.kind != CallArgument::Kind::kFixed || op_.args[i].kind != ArgKind::kOther)) {
      continue;
    }
    arg.info = DecidingInfo(op_, i, number);
    if (arg.info == nullptr) return false;
    arg.runtime = IsRuntimeValue(*arg.info, arg.value);
    arg.free = arg.runtime && arg.info->number.use == NumberUse::kFree;
    if (arg.runtime) AppendScalars(arg.value, given);
    if (arg.free) AppendScalars(arg.value, free);
    if (arg.free && !number) arg.kind = CallArgument::Kind::kRuntime;
  }
  const std::vector<c10::Scalar>& all = state_.tape->scalars();
  const std::vector<c10::Scalar> recorded(all.begin() + static_cast<int64_t>(first_scalar_),
                                          all.end());
  const auto are = [&](const std::vector<c10::Scalar>& scalars) {
    return std::equal(recorded.begin(), recorded.end(), scalars.begin(), scalars.end(), SameScalar);
  };
  const bool as_given = are(given);
  if (!as_given && !free.empty() && !are(free)) return false;
  for (CallArgument& arg : call_.args) {
    arg.runtime = arg.runtime && (as_given || arg.free);
    call_.has_scalars |= arg.runtime;
  }
  if (!as_given && free.empty()) call_.scalars = recorded;
  return true;
}

bool CallCapture::FinishTensor(const at::Tensor& tensor) {
  using Kind = CallResult::Kind;
  CallResult& result = call_.results.emplace_back();
  if (!tensor.defined()) return true;
  if (!Buffer::IsOurs(tensor)) return false;
  Buffer* buffer = BufferOf(tensor);
  result.meta = Shared(TensorMeta::Of(tensor));
  for (size_t k = 0; k < before_.size(); ++k) {
    if (before_[k].buffer != buffer) continue;
    result.operand = static_cast<int32_t>(k);
    result.kind = before_[k].tensor.is_same(tensor) ? Kind::kOperand : Kind::kView;
    if (result.kind == Kind::kOperand) return true;
    result.recipe = RecipeOf(BufferOf(tensor), tensor);
    return IsPlain(tensor) && IsPlain(before_[k].tensor);
  }
  result.kind = Kind::kFresh;
  if (buffer->generation > 1 || tensor.storage().use_count() != 1) return false;
  if (!IsBase(buffer->form, tensor)) {
    if (!IsPlain(tensor)) return false;
    const BaseForm& form = buffer->form;
    result.memory = Shared({.dtype = form.dtype, .sizes = form.sizes, .strides = form.strides});
    result.recipe = RecipeOf(buffer, tensor);
  }
  if (buffer->mark != nullptr && buffer->mark != state_.call.result_mark) return false;
  result.mark = buffer->mark;
  const ValuePtr& value = buffer->value();
  if (value == nullptr) return true;
  result.value = value->id;
  return buffer->generation == 1 && value->tape == tape_;
}

bool CallCapture::FinishResult(const c10::IValue& result) {
  int32_t& size = call_.list_sizes.emplace_back(-1);
  if (result.isTensor()) return FinishTensor(result.toTensor());
  if (result.isTensorList()) {
    const auto items = result.toListRef();
    size = static_cast<int32_t>(items.size());
    return std::all_of(items.begin(), items.end(),
                       [this](const c10::IValue& i) { return FinishTensor(i.toTensor()); });
  }
  CallResult& plain = call_.results.emplace_back();
  plain.kind = CallResult::Kind::kValue;
  plain.plain = result;
  return result.isInt() || result.isNone();
}

void CallCapture::Finish(const torch::jit::Stack& stack) {
  if (!active_ || state_.call.looked_at_values || state_.tape->number() != tape_ ||
      state_.tape->following()) {
    return;
  }
  for (size_t k = 0; k < before_.size(); ++k) {
    if (!FinishOperand(k)) return;
  }
  call_.writes = call_.binds || !op_.written.empty();
  if (call_.writes) NoteShared();
  if (!FinishEvents() || !FinishArguments()) return;
  for (size_t i = stack_below_; i < stack.size(); ++i) {
    if (!FinishResult(stack[i])) return;
  }
  state_.tape->AddCall(std::move(call_));
}

}  // namespace spmd::trace
