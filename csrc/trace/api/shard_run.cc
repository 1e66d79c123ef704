// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/shard_run.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/sum.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/compat/levels.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/shard_impl.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/op/attribute.h"

namespace spmd::trace {

namespace autograd = torch::autograd;

namespace {

uint64_t NewId() {
  static std::atomic<uint64_t> latest = 0;
  return ++latest;
}

bool IsWrappedNumber(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number() && t.is_cpu();
}

// True if `is_wanted` holds for a tensor among the arguments.
template <typename Predicate>
bool AnyTensor(const CallArguments& args, const Predicate& is_wanted) {
  for (size_t i = 0; i < args.values.size(); ++i) {
    const c10::IValue& value = args.values[i];
    if (const at::TensorList* const list = args.tensors(i)) {
      if (std::any_of(list->begin(), list->end(), is_wanted)) return true;
    } else if (value.isTensor()) {
      if (is_wanted(value.toTensor())) return true;
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (!item.isTensor()) break;
        if (is_wanted(item.toTensor())) return true;
      }
    }
  }
  return false;
}

bool IsAnyShard(const at::Tensor& t) { return t.defined() && ShardImpl::Of(t) != nullptr; }

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
      keys_(compat::KeysOfThread()),
      grad_mode_(GradMode()),
      next_node_(at::sequence_number::peek()),
      program_(std::move(known)) {
  bool is_known = program_ != nullptr && program_->deterministic == IsDeterministic();
  for (size_t k = 0; is_known && k < lanes_.size(); ++k) {
    is_known = program_->lanes[k].IsSurelyOf(*lanes_[k].unsafeGetTensorImpl()) &&
               program_->shards[k].dtype == lanes_[k].scalar_type() &&
               program_->shards[k].differentiable == edges_[k].is_valid();
  }
  if (!is_known) program_ = nullptr;
  if (program_ != nullptr) {
    if (at_once) Perform();
    return;
  }
  auto learned = std::make_shared<ShardProgram>();
  learned->deterministic = IsDeterministic();
  for (size_t k = 0; k < lanes_.size(); ++k) {
    const at::Tensor& t = lanes_[k];
    ShardLanes along;
    for (const int64_t axis : axes[k]) along.push_back({static_cast<size_t>(axis), /*dim=*/0});
    learned->lanes.push_back(compat::TensorForm::Of(t.sizes(), t.strides(), t.storage_offset()));
    const size_t n = axes[k].size();
    learned->shards.push_back(
        {.form = compat::TensorForm::Of(t.sizes().slice(n), t.strides().slice(n), /*offset=*/0),
         .dtype = t.scalar_type(),
         .lanes = std::move(along),
         .differentiable = edges_[k].is_valid()});
  }
  program_ = std::move(learned);
  learns_ = true;
  Perform();
}

ShardRun::ShardRun(const ShardRun& other)
    : id_(NewId()),
      levels_(other.levels_),
      edges_(other.edges_),
      forms_(other.forms_),
      keys_(other.keys_),
      grad_mode_(other.grad_mode_),
      next_node_(at::sequence_number::peek()),
      program_(other.program_),
      next_(other.next_) {
  // Tensors of the same memory, without a history.
  for (const at::Tensor& t : other.lanes_) lanes_.push_back(t.detach());
}

std::shared_ptr<ShardRun> ShardRun::PerformedCopy() const {
  const std::shared_ptr<ShardRun> copy(new ShardRun(*this));
  copy->Perform();
  return copy;
}

void ShardRun::End() {
  ended_ = true;
  TORCH_CHECK(false, "torch_spmd: this cannot be done while a region's ops are only noted");
}

at::Tensor ShardRun::MakeShard(int32_t number) const {
  const ShardProgram::Shard& shard = program_->shards[number];
  return compat::NewTensor<ShardImpl>(id_, number, shard.form, shard.dtype);
}

bool ShardRun::IsShard(const at::Tensor& t, int32_t number) const {
  const ShardImpl* const shard = ShardImpl::Of(t);
  return shard != nullptr && shard->run == id_ && shard->number == number && !compat::IsTouched(t);
}

std::optional<int32_t> ShardRun::NumberOf(const at::Tensor& t) const {
  const ShardImpl* const shard = ShardImpl::Of(t);
  if (shard == nullptr || !IsShard(t, shard->number)) return std::nullopt;
  return shard->number;
}

// Functions with a gradient of their own make a node whenever they are called.
bool ShardRun::ShowsAll() const { return at::sequence_number::peek() == next_node_; }

void ShardRun::Check() {
  // Autocast looks at ops before they are noted.
  if (ended_ || !ShowsAll() || at::autocast::is_autocast_enabled(kDeviceType) || NodesAreSeen()) {
    End();
  }
}

bool ShardRun::Call(const OpInfo& op, const CallArguments& args, ResultsTo results) {
  Check();
  if (!op.written.empty() || op.must_run_on_host) End();
  if (!AnyTensor(args, IsAnyShard)) return false;
  const Step* const next = Next();
  if (next != nullptr && IsNext(*next, op, args)) {
    Take(*next, results);
    return true;
  }
  Perform();
  Learn(StepOf(op, args), results);
  return true;
}

std::optional<at::Tensor> ShardRun::Sum(const at::Tensor& x, size_t axis) {
  Check();
  const std::optional<int32_t> number = NumberOf(x);
  if (!number.has_value()) End();
  at::Tensor result;
  const ResultsTo to{.each = absl::MakeSpan(&result, 1)};
  const Step* const next = Next();
  if (next != nullptr && next->op == nullptr && next->function == nullptr && next->axis == axis &&
      next->grad_mode == GradMode() && next->args[0].shards[0] == *number) {
    Take(*next, to);
    return result;
  }
  const ShardLanes& lanes = LanesOf(*number);
  if (lanes.size() != 1 || lanes[0].axis != axis) return std::nullopt;
  Perform();
  Step step{.axis = axis, .grad_mode = GradMode(), .default_dtype = DefaultDtype()};
  step.args.push_back({.kind = ShardProgram::Argument::Kind::kShard, .shards = {*number}});
  Learn(std::move(step), to);
  return result;
}

at::Tensor ShardRun::Apply(absl::Span<const at::Tensor> shards,
                           absl::FunctionRef<bool(const ShardFunction&)> is_it,
                           absl::FunctionRef<std::shared_ptr<const ShardFunction>()> make) {
  Check();
  at::Tensor result;
  const ResultsTo to{.each = absl::MakeSpan(&result, 1)};
  const Step* const next = Next();
  if (next != nullptr && next->function != nullptr && next->grad_mode == GradMode() &&
      next->default_dtype == DefaultDtype() &&
      std::equal(shards.begin(), shards.end(), next->args[0].shards.begin(),
                 next->args[0].shards.end(),
                 [this](const at::Tensor& t, int32_t k) { return IsShard(t, k); }) &&
      is_it(*next->function)) {
    Take(*next, to);
    return result;
  }
  Perform();
  Step step{.function = make(), .grad_mode = GradMode(), .default_dtype = DefaultDtype()};
  step.args.push_back(Tensors(shards, /*is_list=*/true));
  Learn(std::move(step), to);
  return result;
}

const ShardProgram::Step* ShardRun::Next() const {
  return !learns_ && next_ < program_->steps.size() ? &program_->steps[next_] : nullptr;
}

void ShardRun::Take(const Step& step, ResultsTo results) {
  if (performs_) Keep(PerformStep(step));
  ++next_;
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
    return std::equal(
        items.begin(), items.end(), ints->begin(), ints->end(),
        [](const c10::IValue& item, int64_t n) { return item.isInt() && item.toInt() == n; });
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
  return step;
}

void ShardRun::Learn(Step step, ResultsTo results) {
  // Without grad mode the function is in a block of no_grad, or in a function with a gradient of
  // its own, which looks the same.
  const auto is_differentiable = [this](int32_t number) {
    return number >= 0 && program_->shards[number].differentiable;
  };
  for (const ShardProgram::Argument& arg : step.args) {
    if (grad_mode_ && !step.grad_mode &&
        std::any_of(arg.shards.begin(), arg.shards.end(), is_differentiable)) {
      End();
    }
  }
  Performed performed = PerformStep(step);
  ShardProgram& program = Learned();
  for (Performed::Result& result : performed.results) {
    const at::Tensor& t = result.seen;
    step.results.push_back(t.defined() ? static_cast<int32_t>(values_.size()) : -1);
    if (!t.defined()) continue;
    program.shards.push_back({.form = compat::TensorForm::Of(t.sizes(), t.strides(), /*offset=*/0),
                              .dtype = t.scalar_type(),
                              .lanes = std::move(result.lanes),
                              .differentiable = result.value.requires_grad()});
    values_.push_back(std::move(result.value));
  }
  step.list_sizes = std::move(performed.list_sizes);
  GiveResults(step, results);
  program.steps.push_back(std::move(step));
}

void ShardRun::Perform() {
  if (performs_) return;
  performs_ = true;
  values_ = lanes_;
  GiveHistory(lanes_, forms_, edges_);
  next_node_ = at::sequence_number::peek();
  for (size_t k = 0; k < next_; ++k) Keep(PerformStep(program_->steps[k]));
}

void ShardRun::Keep(Performed performed) {
  for (Performed::Result& result : performed.results) {
    if (result.seen.defined()) values_.push_back(std::move(result.value));
  }
}

at::Tensor ShardRun::Batched(int32_t shard, int64_t first) const {
  at::Tensor t = values_[shard];
  for (const ShardLane& lane : LanesOf(shard)) {
    t = compat::MakeBatched(std::move(t), lane.dim, first + static_cast<int64_t>(lane.axis));
  }
  return t;
}

ShardRun::Performed ShardRun::PerformStep(const Step& step) {
  ShardOps* const before = std::exchange(shard_ops, nullptr);
  const caffe2::TypeMeta default_dtype = at::get_default_dtype();
  bool done = false;
  const absl::Cleanup restore = [&] {
    shard_ops = before;
    at::set_default_dtype(default_dtype);
    next_node_ = at::sequence_number::peek();
    ended_ |= !done;  // the function may catch the error, but the run has no result of this step
  };
  at::set_default_dtype(c10::scalarTypeToTypeMeta(step.default_dtype));
  const compat::ForceDispatchKeyGuard keys(keys_);
  const c10::AutoGradMode grad_mode(step.grad_mode);
  Performed performed = step.op != nullptr         ? PerformOp(step)
                        : step.function != nullptr ? PerformFunction(step)
                                                   : PerformSum(step);
  done = true;
  return performed;
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
  const at::Tensor& x = values_[number];
  const bool counts = x.scalar_type() == at::kBool;
  at::Tensor sum = at::sum(x, LanesOf(number)[0].dim, /*keepdim=*/false,
                           counts ? std::nullopt : std::optional(x.scalar_type()));
  Performed performed;
  performed.results.push_back({.seen = sum, .value = sum, .lanes = {}});
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
  Performed::Result result{.seen = seen, .value = seen, .lanes = {}};
  if (!seen.defined()) return result;
  for (size_t axis = levels_->axes(); axis-- > 0;) {
    const compat::BatchedTensorImpl* const varies =
        compat::BatchedAt(result.value, first + static_cast<int64_t>(axis));
    if (varies == nullptr) continue;
    result.lanes.insert(result.lanes.begin(), {axis, varies->bdim()});
    result.value = at::Tensor(varies->value());
  }
  const at::Tensor& t = result.value;
  if (compat::LevelOf(t).has_value() || compat::IsOfGrad(t) || t.device().type() != kDeviceType ||
      t.layout() != at::kStrided || !Buffer::IsOurs(t) || t.is_conj() || t.is_neg()) {
    End();
  }
  return result;
}

}  // namespace spmd::trace
