// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/multi_tensor_adam.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/buffer.h"
#include "csrc/trace/kernel.h"
#include "csrc/trace/tensor.h"
#include "csrc/trace/unboxed_call.h"

namespace spmd::trace {

namespace {

constexpr const char* kName = "spmd::multi_tensor_adam_";

// The op's arguments after the lists, named as in AdamNumbers.
constexpr const char* kNumbers =
    "*, bool maximize, bool amsgrad, float? shrink, float? decay, float first_weight, float beta2, "
    "float second_weight, float root_correction, float eps, float step_size";

using Signature = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                       at::TensorList, bool, bool, std::optional<double>, std::optional<double>,
                       double, double, double, double, double, double);

void Kernel(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
            at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, bool maximize, bool amsgrad,
            std::optional<double> shrink, std::optional<double> decay, double first_weight,
            double beta2, double second_weight, double root_correction, double eps,
            double step_size) {
  static const OpInfo& op = GetOp(kName);
  for (const at::TensorList list : {params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}) {
    CheckWritable(list);
  }
  const auto run = [](const auto&... args) {
    Made<void> nothing;
    if (ReplayCall<void>(op, nothing, args...)) return;
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    RunAndRecord(op, &stack);
  };
  run(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, maximize, amsgrad, shrink, decay,
      first_weight, beta2, second_weight, root_correction, eps, step_size);
  // Counts a write as often as the separate ops would.
  if (shrink.has_value()) CountWrites(params);
  CountWrites(params);
  CountWrites(exp_avgs);
  CountWrites(exp_avg_sqs);
  CountWrites(exp_avg_sqs);
  CountWrites(max_exp_avg_sqs);
}

bool IsPlain(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided &&
         !t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

// True if each parameter's tensors are floating-point tensors of the device, of one type, and share
// no memory with each other. (Tensors of two parameters may share memory: the parameters are then
// stepped one after the other.)
bool AreOrdinary(const AdamLists& lists, bool amsgrad) {
  const size_t n = lists.params.size();
  std::vector<const std::vector<at::Tensor>*> all = {&lists.params, &lists.grads, &lists.exp_avgs,
                                                     &lists.exp_avg_sqs};
  if (amsgrad) all.push_back(&lists.max_exp_avg_sqs);
  for (const auto* list : all) {
    if (list->size() != n) return false;
  }
  if (lists.counters.size() != n || (!amsgrad && !lists.max_exp_avg_sqs.empty())) return false;
  absl::InlinedVector<const Buffer*, 5> buffers;
  for (size_t k = 0; k < n; ++k) {
    const at::Tensor& param = lists.params[k];
    if (!param.defined() || !at::isFloatingType(param.scalar_type())) return false;
    buffers.clear();
    for (const auto* list : all) {
      const at::Tensor& t = (*list)[k];
      if (!IsPlain(t) || !Buffer::IsOurs(t)) return false;
      if (t.scalar_type() != param.scalar_type() || t.sizes() != param.sizes()) return false;
      const Buffer* buffer = BufferOf(t);
      if (absl::c_linear_search(buffers, buffer)) return false;
      buffers.push_back(buffer);
    }
  }
  return true;
}

// Calls `f` on the number in `t`, a float or double.
template <typename F>
auto OnNumber(const at::Tensor& t, F f) {
  return t.scalar_type() == at::kFloat ? f(*t.mutable_data_ptr<float>())
                                       : f(*t.mutable_data_ptr<double>());
}

// True if the counters are distinct host scalars without autograd, and each will be equal to `step`
// after counting one more. They can then be counted here.
bool AreBefore(const std::vector<at::Tensor>& counters, double step) {
  absl::flat_hash_set<const void*> seen;
  for (const at::Tensor& t : counters) {
    const bool is_number = IsPlain(t) && t.is_cpu() && t.numel() == 1 && !t.requires_grad() &&
                           !t.is_inference() && !t.is_neg() &&
                           (t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble);
    if (!is_number || !seen.insert(t.const_data_ptr()).second) return false;
    if (OnNumber(t, [](auto n) { return static_cast<double>(n + 1); }) != step) return false;
  }
  return true;
}

void Count(const std::vector<at::Tensor>& counters) {
  for (const at::Tensor& t : counters) {
    OnNumber(t, [](auto& n) { return n += 1; });
    torch::autograd::impl::bump_version(t);
  }
}

// True if something observes every op, or differentiates through it.
bool IsWatched() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || c10::GradMode::is_enabled() ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

}  // namespace

bool StepAdam(const AdamLists& lists, const AdamNumbers& n, double step) {
  if (lists.params.empty() || IsWatched()) return false;
  if (!AreOrdinary(lists, n.amsgrad) || !AreBefore(lists.counters, step)) return false;
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName, "").typed<Signature>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(lists.params, lists.grads, lists.exp_avgs, lists.exp_avg_sqs, lists.max_exp_avg_sqs,
          n.maximize, n.amsgrad, n.shrink, n.decay, n.first_weight, n.beta2, n.second_weight,
          n.root_correction, n.eps, n.step_size);
  Count(lists.counters);
  return true;
}

void DefineMultiTensorAdam() {
  // Never destroyed: the dispatcher may outlive static objects of this library.
  auto* library =
      new torch::Library(torch::Library::FRAGMENT, "spmd", std::nullopt, __FILE__, __LINE__);
  const auto define = [library](const std::string& schema) { library->def(schema.c_str()); };
  define(
      absl::StrCat("multi_tensor_adam(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, "
                   "Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs, ",
                   kNumbers, ") -> (Tensor[], Tensor[], Tensor[], Tensor[])"));
  define(
      absl::StrCat("multi_tensor_adam_(Tensor(a!)[] params, Tensor[] grads, "
                   "Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
                   "Tensor(d!)[] max_exp_avg_sqs, ",
                   kNumbers, ") -> ()"));
  library->impl("multi_tensor_adam_",
                torch::dispatch(c10::DispatchKey::PrivateUse1, TORCH_FN(Kernel)));
}

}  // namespace spmd::trace
