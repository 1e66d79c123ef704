// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/shard_run.h"

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/sum.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <typeinfo>

#include "absl/cleanup/cleanup.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/shard_impl.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace functorch = at::functorch;

namespace {

// True if the function has given the shard a history or hooks, or has changed whether it is a leaf.
bool IsTouched(const at::Tensor& t, bool differentiable) {
  const autograd::AutogradMeta* const meta = MetaOf(t);
  if (meta == nullptr) return differentiable;
  return meta->requires_grad_ != differentiable || meta->grad_fn_ != nullptr ||
         !meta->hooks_.empty() || meta->post_acc_grad_hooks_ != nullptr ||
         meta->fw_grad_ != nullptr;
}

uint64_t NewId() {
  static std::atomic<uint64_t> latest = 0;
  return ++latest;
}

bool IsWrappedNumber(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number() && t.is_cpu();
}

// What depends on more than its arguments.
bool DependsOnMore(const OpInfo& op) {
  return op.must_run_on_host || op.handle.hasTag(at::Tag::nondeterministic_seeded);
}

at::ScalarType DefaultDtype() { return at::typeMetaToScalarType(at::get_default_dtype()); }

bool IsDeterministic() { return at::globalContext().deterministicAlgorithms(); }

bool GradMode() { return c10::AutogradState::get_tls_state().get_grad_mode(); }

}  // namespace

// --- the run ---

ShardRun::ShardRun(std::shared_ptr<const RegionLevels> levels, std::vector<at::Tensor> lanes,
                   absl::Span<const std::vector<int64_t>> axes, autograd::edge_list edges,
                   absl::Span<const LaneFormPtr> forms, ShardProgramPtr known, bool at_once)
    : id_(NewId()),
      levels_(std::move(levels)),
      lanes_(std::move(lanes)),
      edges_(std::move(edges)),
      forms_(forms.begin(), forms.end()),
      keys_(c10::impl::tls_local_dispatch_key_set()),
      program_(std::move(known)) {
  bool is_known = program_ != nullptr && program_->deterministic == IsDeterministic();
  for (size_t k = 0; is_known && k < lanes_.size(); ++k) {
    is_known = program_->lanes[k].IsSurelyOf(*lanes_[k].unsafeGetTensorImpl()) &&
               program_->shards[k].dtype == lanes_[k].scalar_type() &&
               program_->shards[k].differentiable == edges_[k].is_valid();
  }
  if (!is_known) program_ = nullptr;
  values_.resize(lanes_.size());
  for (size_t k = 0; k < lanes_.size(); ++k) {
    for (const int64_t axis : axes[k]) values_[k].nest.push_back({static_cast<size_t>(axis), 0});
  }
  if (program_ != nullptr) {
    if (at_once) Perform();
    return;
  }
  performs_ = true;
  auto learned = std::make_shared<ShardProgram>();
  learned->deterministic = IsDeterministic();
  for (size_t k = 0; k < lanes_.size(); ++k) {
    const at::Tensor& t = lanes_[k];
    values_[k].tensor = t;
    learned->lanes.push_back(TensorForm::Of(t.sizes(), t.strides(), t.storage_offset()));
    const size_t n = axes[k].size();
    learned->shards.push_back(
        {.form = TensorForm::Of(t.sizes().slice(n), t.strides().slice(n), /*offset=*/0),
         .dtype = t.scalar_type(),
         .differentiable = edges_[k].is_valid()});
  }
  program_ = std::move(learned);
  learns_ = true;
  GiveHistory(lanes_, forms_, edges_);
}

void ShardRun::End() {
  ended_ = true;
  TORCH_CHECK(false, "torch_spmd: this cannot be done while a region's ops are only noted");
}

at::Tensor ShardRun::MakeShard(int32_t number) const {
  const ShardProgram::Shard& shard = program_->shards[number];
  return at::detail::make_tensor_base<ShardImpl>(id_, number, shard.form, shard.dtype,
                                                 shard.differentiable);
}

bool ShardRun::IsShard(const at::Tensor& t, int32_t number) const {
  const ShardImpl* const shard = ShardImpl::Of(t);
  return shard != nullptr && shard->run == id_ && shard->number == number &&
         !IsTouched(t, program_->shards[number].differentiable);
}

std::optional<int32_t> ShardRun::NumberOf(const at::Tensor& t) const {
  const ShardImpl* const shard = ShardImpl::Of(t);
  if (shard == nullptr || !IsShard(t, shard->number)) return std::nullopt;
  return shard->number;
}

void ShardRun::Call(const OpInfo& op, const CallArguments& args, ResultsTo results) {
  if (ended_ || !op.written.empty() ||
      !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
    End();
  }
  const Step* const next = Next();
  if (next != nullptr && IsNext(*next, op, args)) return Take(*next, results);
  Perform();
  Learn(StepOf(op, args), results);
}

std::optional<at::Tensor> ShardRun::Sum(const at::Tensor& x, size_t axis) {
  const std::optional<int32_t> number = NumberOf(x);
  if (ended_ || !number.has_value()) End();
  at::Tensor result;
  const ResultsTo to{.each = absl::MakeSpan(&result, 1)};
  const Step* const next = Next();
  if (next != nullptr && next->op == nullptr && next->function == nullptr && next->axis == axis &&
      next->grad_mode == GradMode() && next->args[0].shards[0] == *number) {
    Take(*next, to);
    return result;
  }
  Perform();
  const Nest& nest = NestOf(*number);
  if (nest.size() != 1 || nest[0].axis != axis) return std::nullopt;
  Step step{.axis = axis, .grad_mode = GradMode()};
  step.args.push_back({.kind = ShardProgram::Argument::Kind::kShard, .shards = {*number}});
  Learn(std::move(step), to);
  return result;
}

at::Tensor ShardRun::Apply(std::shared_ptr<const ShardFunction> function,
                           absl::Span<const at::Tensor> shards) {
  if (ended_) End();
  at::Tensor result;
  const ResultsTo to{.each = absl::MakeSpan(&result, 1)};
  const Step* const next = Next();
  if (next != nullptr && next->function != nullptr && next->grad_mode == GradMode() &&
      std::equal(shards.begin(), shards.end(), next->args[0].shards.begin(),
                 next->args[0].shards.end(),
                 [this](const at::Tensor& t, int32_t k) { return IsShard(t, k); }) &&
      next->function->Equals(*function)) {
    Take(*next, to);
    return result;
  }
  Perform();
  Step step{.function = std::move(function), .grad_mode = GradMode()};
  step.args.push_back(Tensors(shards, /*is_list=*/true));
  Learn(std::move(step), to);
  return result;
}

const ShardProgram::Step* ShardRun::Next() const {
  return !learns_ && next_ < program_->steps.size() ? &program_->steps[next_] : nullptr;
}

void ShardRun::Take(const Step& step, ResultsTo results) {
  ++next_;
  if (performs_) Keep(PerformStep(step));
  GiveResults(step, results);
}

void ShardRun::GiveResults(const Step& step, ResultsTo results) const {
  const auto tensor = [&](size_t k) {
    return step.results[k] < 0 ? at::Tensor() : MakeShard(step.results[k]);
  };
  for (size_t k = 0; k < results.each.size(); ++k) results.each[k] = tensor(k);
  if (results.tensors != nullptr) {
    for (size_t k = 0; k < step.results.size(); ++k) results.tensors->push_back(tensor(k));
  }
  if (results.list == nullptr) return;
  size_t next = 0;
  for (const int32_t size : step.list_sizes) {
    if (size < 0) {
      results.list->emplace_back(tensor(next++));
      continue;
    }
    std::vector<at::Tensor> list;
    for (int32_t i = 0; i < size; ++i) list.push_back(tensor(next++));
    results.list->emplace_back(std::move(list));
  }
}

// --- steps that are known ---

bool ShardRun::IsNext(const Step& step, const OpInfo& op, const CallArguments& args) const {
  if (step.op != &op || step.grad_mode != GradMode() || step.default_dtype != DefaultDtype()) {
    return false;
  }
  for (size_t i = 0; i < step.args.size(); ++i) {
    if (!Agrees(step.args[i], args, i)) return false;
  }
  return true;
}

bool ShardRun::Agrees(const ShardProgram::Argument& known, const CallArguments& args,
                      size_t i) const {
  using Kind = ShardProgram::Argument::Kind;
  const auto is = [this](const at::Tensor& t, int32_t number) {
    return number < 0 ? !t.defined() : t.defined() && IsShard(t, number);
  };
  const c10::IValue& value = args.values[i];
  switch (known.kind) {
    case Kind::kShard:
      if (known.shards[0] < 0) return value.isTensor() && !value.toTensor().defined();
      return value.isTensor() && is(value.toTensor(), known.shards[0]);
    case Kind::kShards: {
      if (const at::TensorList* const list = args.tensors(i)) {
        return std::equal(list->begin(), list->end(), known.shards.begin(), known.shards.end(), is);
      }
      if (!value.isList()) return false;
      const auto items = value.toListRef();
      return std::equal(items.begin(), items.end(), known.shards.begin(), known.shards.end(),
                        [&](const c10::IValue& item, int32_t number) {
                          return item.isTensor() ? is(item.toTensor(), number) : number < 0;
                        });
    }
    case Kind::kNumber:
      return value.isTensor() && IsWrappedNumber(value.toTensor()) &&
             value.toTensor().scalar_type() == known.value.toTensor().scalar_type() &&
             SameArgument(c10::IValue(NumberIn(known.value.toTensor())),
                          c10::IValue(NumberIn(value.toTensor())), /*value=*/true);
    case Kind::kOther:
      break;
  }
  if (const at::IntArrayRef* const ints = args.ints(i)) {
    if (!known.value.isList()) return false;
    const auto items = known.value.toListRef();
    return std::equal(items.begin(), items.end(), ints->begin(), ints->end(),
                      [](const c10::IValue& item, int64_t n) { return item.toInt() == n; });
  }
  return args.tensors(i) == nullptr && SameArgument(known.value, value, /*value=*/true);
}

// --- steps that are performed ---

ShardProgram& ShardRun::Learned() {
  if (!learns_) {
    auto learned = std::make_shared<ShardProgram>(*program_);
    learned->steps.resize(next_);
    // The shards behind those of the steps that have come are not this program's.
    size_t shards = lanes_.size();
    for (const Step& step : learned->steps) {
      for (const int32_t number : step.results) {
        shards = std::max(shards, static_cast<size_t>(number + 1));
      }
    }
    learned->shards.resize(shards);
    program_ = std::move(learned);
    learns_ = true;
  }
  return const_cast<ShardProgram&>(*program_);  // this run made it
}

ShardProgramPtr ShardRun::ProgramOf(int32_t result) {
  const bool is_known = !learns_ && next_ == program_->steps.size() && program_->result == result;
  if (!is_known) Learned().result = result;
  return program_;
}

ShardProgram::Argument ShardRun::Tensors(absl::Span<const at::Tensor> tensors, bool is_list) {
  using Kind = ShardProgram::Argument::Kind;
  ShardProgram::Argument arg{.kind = is_list ? Kind::kShards : Kind::kShard};
  std::vector<at::Tensor> others;
  bool has_others = false;
  for (const at::Tensor& t : tensors) {
    const bool is_shard = t.defined() && ShardImpl::Of(t) != nullptr;
    const std::optional<int32_t> number = is_shard ? NumberOf(t) : std::nullopt;
    if (is_shard && !number.has_value()) End();
    arg.shards.push_back(number.value_or(-1));
    others.push_back(is_shard ? at::Tensor() : t);
    has_others |= !is_shard && t.defined();
  }
  if (has_others) {
    Learned().repeatable = false;
    arg.others = std::move(others);
  }
  return arg;
}

ShardProgram::Argument ShardRun::ArgumentOf(const OpInfo& op, const CallArguments& args, size_t i) {
  using Kind = ShardProgram::Argument::Kind;
  const c10::IValue& value = args.values[i];
  if (const at::IntArrayRef* const ints = args.ints(i)) {
    return {.kind = Kind::kOther, .value = ints->vec()};
  }
  if (const at::TensorList* const list = args.tensors(i)) {
    return Tensors({list->data(), list->size()}, /*is_list=*/true);
  }
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (IsWrappedNumber(t)) return {.kind = Kind::kNumber, .value = value};
    return Tensors({&t, 1}, /*is_list=*/false);
  }
  if (op.args[i].kind == ArgKind::kTensorList && value.isList()) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& item : value.toListRef()) {
      tensors.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
    }
    return Tensors(tensors, /*is_list=*/true);
  }
  if (op.args[i].kind == ArgKind::kGenerator && !value.isNone()) Learned().repeatable = false;
  return {.kind = Kind::kOther, .value = value};
}

ShardRun::Step ShardRun::StepOf(const OpInfo& op, const CallArguments& args) {
  Step step{.op = &op, .grad_mode = GradMode(), .default_dtype = DefaultDtype()};
  for (size_t i = 0; i < args.values.size(); ++i) step.args.push_back(ArgumentOf(op, args, i));
  if (DependsOnMore(op)) Learned().repeatable = false;
  return step;
}

void ShardRun::Learn(Step step, ResultsTo results) {
  Performed performed = PerformStep(step);
  ShardProgram& program = Learned();
  const bool differentiable = IsDifferentiable(step);
  for (Performed::Result& result : performed.results) {
    const at::Tensor& t = result.seen;
    step.results.push_back(t.defined() ? static_cast<int32_t>(values_.size()) : -1);
    if (!t.defined()) continue;
    program.shards.push_back(
        {.form = TensorForm::Of(t.sizes(), t.strides(), /*offset=*/0),
         .dtype = t.scalar_type(),
         .differentiable = differentiable && autograd::isDifferentiableType(t.scalar_type())});
    values_.push_back(std::move(result.value));
  }
  step.list_sizes = std::move(performed.list_sizes);
  GiveResults(step, results);
  program.steps.push_back(std::move(step));
}

bool ShardRun::IsDifferentiable(const Step& step) const {
  if (!step.grad_mode || (step.op != nullptr && step.op->name == "aten::detach")) return false;
  return std::any_of(step.args.begin(), step.args.end(), [&](const ShardProgram::Argument& arg) {
    return std::any_of(arg.shards.begin(), arg.shards.end(), [&](int32_t number) {
      return number >= 0 && program_->shards[number].differentiable;
    });
  });
}

void ShardRun::Perform() {
  if (performs_) return;
  performs_ = true;
  for (size_t k = 0; k < lanes_.size(); ++k) values_[k].tensor = lanes_[k];
  GiveHistory(lanes_, forms_, edges_);
  for (size_t k = 0; k < next_; ++k) Keep(PerformStep(program_->steps[k]));
}

void ShardRun::Keep(Performed performed) {
  for (Performed::Result& result : performed.results) {
    if (result.seen.defined()) values_.push_back(std::move(result.value));
  }
}

at::Tensor ShardRun::Batched(int32_t shard, int64_t first) const {
  at::Tensor t = ValueOf(shard);
  for (const Lane& lane : NestOf(shard)) {
    t = functorch::makeBatched(std::move(t), lane.dim, first + static_cast<int64_t>(lane.axis));
  }
  return t;
}

ShardRun::Performed ShardRun::PerformStep(const Step& step) {
  ShardOps* const before = std::exchange(shard_ops, nullptr);
  const absl::Cleanup restore = [before] { shard_ops = before; };
  const c10::impl::ForceDispatchKeyGuard keys(keys_);
  const c10::AutoGradMode grad_mode(step.grad_mode);
  if (step.op != nullptr) return PerformOp(step);
  return step.function != nullptr ? PerformFunction(step) : PerformSum(step);
}

ShardRun::Performed ShardRun::PerformFunction(const Step& step) {
  const int64_t first = levels_->Enter();
  const absl::Cleanup leave = [&] { levels_->Leave(first); };
  Performed performed;
  performed.results.push_back(
      Unwrapped(step.function->Call(OperandTensors(step.args[0], first), first), first));
  performed.list_sizes.push_back(-1);
  return performed;
}

ShardRun::Performed ShardRun::PerformSum(const Step& step) const {
  const int32_t number = step.args[0].shards[0];
  const at::Tensor& x = ValueOf(number);
  const bool counts = x.scalar_type() == at::kBool;
  at::Tensor sum = at::sum(x, NestOf(number)[0].dim, /*keepdim=*/false,
                           counts ? std::nullopt : std::optional(x.scalar_type()));
  Performed performed;
  performed.results.push_back({.seen = sum, .value = {.tensor = sum}});
  performed.list_sizes.push_back(-1);
  return performed;
}

std::vector<at::Tensor> ShardRun::OperandTensors(const ShardProgram::Argument& arg,
                                                 int64_t first) const {
  std::vector<at::Tensor> tensors;
  for (size_t k = 0; k < arg.shards.size(); ++k) {
    if (arg.shards[k] >= 0) {
      tensors.push_back(Batched(arg.shards[k], first));
    } else {
      tensors.push_back(arg.others.empty() ? at::Tensor() : arg.others[k]);
    }
  }
  return tensors;
}

c10::IValue ShardRun::Operand(const Step& step, size_t i, int64_t first) const {
  using Kind = ShardProgram::Argument::Kind;
  const ShardProgram::Argument& arg = step.args[i];
  if (arg.kind == Kind::kNumber || arg.kind == Kind::kOther) return arg.value;
  std::vector<at::Tensor> tensors = OperandTensors(arg, first);
  if (arg.kind == Kind::kShard) return tensors[0];
  const c10::TypePtr& type = step.op->handle.schema().arguments()[i].type();
  if (type->isSubtypeOf(*c10::ListType::ofTensors())) return tensors;
  c10::List<std::optional<at::Tensor>> optional;
  for (const at::Tensor& t : tensors)
    optional.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return optional;
}

ShardRun::Performed ShardRun::PerformOp(const Step& step) {
  const int64_t first = levels_->Enter();
  const absl::Cleanup leave = [&] { levels_->Leave(first); };
  torch::jit::Stack stack;
  for (size_t i = 0; i < step.args.size(); ++i) stack.push_back(Operand(step, i, first));
  step.op->handle.callBoxed(&stack);
  Performed performed;
  for (const c10::IValue& result : stack) {
    if (result.isTensor()) {
      performed.list_sizes.push_back(-1);
      performed.results.push_back(Unwrapped(result.toTensor(), first));
    } else if (result.isTensorList()) {
      const std::vector<at::Tensor> tensors = result.toTensorVector();
      performed.list_sizes.push_back(static_cast<int32_t>(tensors.size()));
      for (const at::Tensor& t : tensors) performed.results.push_back(Unwrapped(t, first));
    } else {
      End();
    }
  }
  return performed;
}

ShardRun::Performed::Result ShardRun::Unwrapped(const at::Tensor& seen, int64_t first) {
  Value value{.tensor = seen};
  if (!seen.defined()) return {seen, std::move(value)};
  for (size_t axis = levels_->axes(); axis-- > 0;) {
    const functorch::BatchedTensorImpl* const varies = functorch::maybeGetBatchedImpl(value.tensor);
    if (varies == nullptr || varies->level() != first + static_cast<int64_t>(axis)) continue;
    value.nest.insert(value.nest.begin(), {axis, varies->bdim()});
    value.tensor = at::Tensor(varies->value());
  }
  const at::Tensor& t = value.tensor;
  if (functorch::isBatchedTensor(t) || t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper) ||
      t.device().type() != kDeviceType || t.layout() != at::kStrided || !Buffer::IsOurs(t) ||
      t.is_conj() || t.is_neg()) {
    End();
  }
  return {seen, std::move(value)};
}

// --- places ---

size_t ShardPlaces::NextCall() {
  SessionLock lock;
  return lock->tape->next_call();
}

ShardPlaces::Start ShardPlaces::StartAt(size_t calls_before) {
  SessionLock lock;
  Tape& tape = *lock->tape;
  Start start{.tape = tape.number(),
              .event = tape.event(),
              .slot = static_cast<int64_t>(tape.num_values()),
              .records = tape.num_records(),
              .scalars = tape.scalars().size()};
  if (!tape.following() || tape.HasOtherStarts()) return start;
  const size_t next = tape.next_call();
  if (next == 0 || next <= calls_before) return start;
  const TracedCall& call = *tape.lead().calls[next - 1];
  if (!IsToLanes(*call.op) || call.end_event != tape.event()) return start;
  start.lead = tape.lead_pointer();
  start.call = next - 1;
  return start;
}

void ShardPlaces::Note(const Start& start, ShardProgramPtr program, JoinedRegionPtr joined) {
  if (start.lead == nullptr || !program->repeatable) return;
  SessionLock lock;
  Tape& tape = *lock->tape;
  if (tape.number() != start.tape || !tape.following() || tape.lead_pointer() != start.lead ||
      tape.HasOtherStarts()) {
    return;
  }
  const Recording& lead = tape.lead();
  const size_t next = tape.next_call();
  if (next <= start.call + 1) return;
  Place place{.recording = start.lead,
              .program = std::move(program),
              .last = lead.calls[next - 1],
              .next_call = next,
              .calls = static_cast<int64_t>(next - start.call - 1),
              .joined = std::move(joined)};
  const TracedCall& last = *place.last;
  if (last.end_event != tape.event() || last.results.size() != 1 ||
      last.results[0].kind != CallResult::Kind::kFresh) {
    return;
  }
  place.all.task = last.task;
  for (size_t k = start.call + 1; k < next; ++k) {
    const TracedCall& call = *lead.calls[k];
    if (call.num_inputs > 0 || call.updates_first || call.binds) return;
    if (call.num_records > 0 && call.task != last.task) return;
  }
  for (int32_t e = start.event; e < tape.event(); ++e) {
    if (lead.events[e].kind == Event::Kind::kInput) return;
  }
  place.all.first_event = start.event;
  place.all.end_event = tape.event();
  place.all.first_slot = static_cast<TapeId>(start.slot);
  place.all.end_slot = static_cast<TapeId>(tape.num_values());
  place.all.num_records = static_cast<int>(tape.num_records() - start.records);
  place.scalars.assign(tape.scalars().begin() + static_cast<int64_t>(start.scalars),
                       tape.scalars().end());
  constexpr size_t kMostPlaces = 256;  // of programs that never repeat
  if (places_.size() >= kMostPlaces) places_.clear();
  places_[{start.lead.get(), start.call}] = std::make_shared<const Place>(std::move(place));
}

std::shared_ptr<const ShardPlaces::Place> ShardPlaces::Find(const Start& start) const {
  if (start.lead == nullptr) return nullptr;
  const auto it = places_.find({start.lead.get(), start.call});
  if (it == places_.end() || it->second->recording.lock() != start.lead) return nullptr;
  return it->second;
}

ShardProgramPtr ShardPlaces::At(const Start& start) const {
  const std::shared_ptr<const Place> place = Find(start);
  return place == nullptr ? nullptr : place->program;
}

std::optional<ShardPlaces::Skipped> ShardPlaces::Skip(const Start& start,
                                                      const ShardProgramPtr& program,
                                                      const autograd::edge_list& edges) {
  const std::shared_ptr<const Place> found = Find(start);
  if (found == nullptr || found->program != program) return std::nullopt;
  const Place& place = *found;
  if (place.joined != nullptr &&
      (!LeadAlike(*place.joined, edges) || !MayBeJoined(*place.joined))) {
    return std::nullopt;
  }
  SessionLock lock;
  Tape& tape = *lock->tape;
  if (tape.number() != start.tape || !tape.following() || tape.lead_pointer() != start.lead ||
      tape.event() != start.event) {
    return std::nullopt;
  }
  const int64_t graph_task = GraphTask();
  if (tape.TaskNumber(graph_task) != place.all.task) return std::nullopt;
  lock->micro_steps.Note(graph_task, /*updates_first=*/false);
  lock->diagnostics.statistics.records += place.all.num_records;
  lock->diagnostics.statistics.replayed += place.calls;
  for (const c10::Scalar& scalar : place.scalars) tape.AddScalar(scalar);
  tape.Skip(place.all, {});
  tape.next_call() = place.next_call;
  Skipped skipped{MakeFresh(tape, place.last->results[0]), place.joined};
  EndPassInCut(*lock);
  return skipped;
}

}  // namespace spmd::trace
