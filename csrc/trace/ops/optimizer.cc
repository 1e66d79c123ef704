// SPDX-License-Identifier: Apache-2.0
// Optimizer steps that are a single in-place op: one record for all parameters. Gradients are
// written only if the op unscales them. Parameters that share memory are stepped one after the
// other, as by PyTorch's kernels.
#include <ATen/MemoryOverlap.h>

#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

class WholeStep {
 public:
  WholeStep(const OpInfo& op, const Args& args) : op_(op), args_(args) {
    for (size_t i = 0; i < args.size(); ++i) {
      if (op.args[i].kind != ArgKind::kTensorList) continue;
      lists_.push_back({static_cast<int>(i), args[i].toTensorVector()});
    }
    const int scale = op.FindArg("grad_scale");
    unscales_ = scale >= 0 && args[scale].isTensor();
  }

  // Uses PyTorch's error messages where there are any: its kernels do not check sizes.
  void Check() const {
    const std::vector<at::Tensor>& params = lists_[0].tensors;
    for (const List& list : lists_) {
      const std::string& name = NameOf(list);
      const size_t want = IsUsed(name) ? params.size() : 0;
      TORCH_CHECK(list.tensors.size() == want, "Expected ", name,
                  ".size() == ", want == 0 ? "0" : "n_tensors", " to be true, but got false.");
      for (size_t k = 0; k < want; ++k) CheckTensor(list, k);
    }
  }

  int64_t size() const { return static_cast<int64_t>(lists_[0].tensors.size()); }

  // True if no two parameters, nor the tensors that belong to them, share memory.
  bool IsIndependent() const {
    absl::flat_hash_set<const Buffer*> written;
    for (const List& list : lists_) {
      if (!IsWritten(list)) continue;
      for (const at::Tensor& t : list.tensors) {
        if (!written.insert(BufferOf(t)).second) return false;
      }
    }
    const auto is_written = [&](const at::Tensor& t) {
      return Buffer::IsOurs(t) && written.contains(BufferOf(t));
    };
    for (const List& list : lists_) {
      if (IsWritten(list)) continue;
      for (const at::Tensor& t : list.tensors) {
        if (is_written(t)) return false;
      }
    }
    for (const c10::IValue& arg : args_) {
      if (arg.isTensor() && arg.toTensor().defined() && is_written(arg.toTensor())) return false;
    }
    return true;
  }

  // Steps `count` parameters from `begin` on.
  void Record(SessionState& state, int64_t begin, int64_t count) const {
    Args args = args_;
    for (const List& list : lists_) {
      if (list.tensors.empty()) continue;
      const auto first = list.tensors.begin() + begin;
      args[list.argument] = std::vector<at::Tensor>(first, first + count);
    }
    const OpInfo& twin = *op_.functional();
    Args twin_args = Rearrange(op_, args, twin);
    const Inference& inferred = state.shapes.Infer(twin, twin_args);
    TORCH_CHECK(inferred.ok, op_.name, ": the shapes of its results are not known");
    std::vector<TensorType> types;
    for (const TensorMeta& meta : inferred.tensors) types.push_back(TypeOf(meta));
    Arguments call = ReadArguments(state, twin, std::move(twin_args));
    const TapeId results = Emit(state, *call.op, std::move(call.args), std::move(call.operands),
                                types, std::move(call.groups), /*updates_first=*/true);
    // The results are the written lists, in order. If a gradient is the parameter itself, the
    // parameter's result wins.
    for (const bool grads : {true, false}) {
      TapeId next = results;
      for (const List& list : lists_) {
        if (!op_.args[list.argument].written) continue;
        for (int64_t k = begin; k < begin + count && !list.tensors.empty(); ++k, ++next) {
          if (!IsWritten(list) || (NameOf(list) == "grads") != grads) continue;
          Write(state, list.tensors[k], next);
        }
      }
    }
  }

 private:
  struct List {
    int argument;
    std::vector<at::Tensor> tensors;
  };

  const std::string& NameOf(const List& list) const { return op_.args[list.argument].name; }
  bool IsWritten(const List& list) const {
    return op_.args[list.argument].written && (unscales_ || NameOf(list) != "grads");
  }
  // False for a list that has no entries because an option is off.
  bool IsUsed(std::string_view list) const {
    if (list == "max_exp_avg_sqs") return args_[op_.FindArg("amsgrad")].toBool();
    if (list == "momentum_buffer_list") return args_[op_.FindArg("momentum")].toDouble() != 0;
    return true;
  }

  void CheckTensor(const List& list, size_t k) const {
    const at::Tensor &t = list.tensors[k], &param = lists_[0].tensors[k];
    if (NameOf(list) == "state_steps") {
      TORCH_CHECK(t.numel() == 1, "state_steps[", k, "] must be one number; got ", t.sizes());
      return;
    }
    BufferOf(t);  // throws for other devices
    TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(t.scalar_type()), '"', KernelName(),
                                "\" not implemented for '", t.scalar_type(), "'");
    TORCH_CHECK(t.scalar_type() == param.scalar_type(), "expected scalar type ",
                param.scalar_type(), " but found ", t.scalar_type());
    TORCH_CHECK(t.sizes() == param.sizes(), NameOf(list), "[", k, "] has sizes ", t.sizes(),
                " where the parameter has ", param.sizes());
    if (IsWritten(list)) at::assert_no_internal_overlap(t);
  }

  // "aten::_fused_adamw_" → "fused_adam_kernel", as in PyTorch's errors.
  std::string KernelName() const {
    for (const char* const optimizer : {"adagrad", "adam", "sgd"}) {
      if (op_.name.find(optimizer) != std::string::npos) {
        return absl::StrCat("fused_", optimizer, "_kernel");
      }
    }
    return op_.name;
  }

  const OpInfo& op_;
  const Args& args_;
  std::vector<List> lists_;  // the parameters first
  bool unscales_ = false;
};

void Step(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PopArguments(op, stack);
  const WholeStep step(op, args);
  step.Check();
  const int64_t at_once = step.IsIndependent() ? step.size() : 1;
  for (int64_t k = 0; k < step.size(); k += at_once) step.Record(state, k, at_once);
}

constexpr HandlerRow kOptimizerHandlers[] = {
    {"aten::_fused_adagrad_", &Step, kReplayable},
    {"aten::_fused_adagrad_.tensor_lr", &Step, kReplayable},
    {"aten::_fused_adam_", &Step, kReplayable},
    {"aten::_fused_adam_.tensor_lr", &Step, kReplayable},
    {"aten::_fused_adamw_", &Step, kReplayable},
    {"aten::_fused_adamw_.tensor_lr", &Step, kReplayable},
    {"aten::_fused_sgd_", &Step, kReplayable},
    {"aten::_fused_sgd_.tensor_lr", &Step, kReplayable},
};
static_assert(IsSortedAndUnique(kOptimizerHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> OptimizerHandlers() { return kOptimizerHandlers; }

}  // namespace spmd::trace
