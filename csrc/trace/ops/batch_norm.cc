// SPDX-License-Identifier: Apache-2.0
// Batch normalisation has a dozen names in PyTorch. All of them are expressed by native_batch_norm
// and its gradient.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/var_mean.h>

#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// native_batch_norm writes its running statistics although its schema does not say so.
void BatchNorm(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor mean = TensorOrUndefined(a[3]), var = TensorOrUndefined(a[4]);
  const bool training = a[5].toBool();
  const bool tracks = mean.defined() && var.defined();
  const OpInfo& infer_op = GetOp("aten::native_batch_norm");
  const Inference& inferred = state.shapes.Infer(infer_op, a);
  TORCH_CHECK(inferred.ok, "native_batch_norm: invalid arguments");
  const std::vector<TensorMeta> metas = inferred.tensors;
  std::vector<TensorType> types;
  for (const TensorMeta& m : metas) types.push_back(TypeOf(m));
  const bool updates = training && tracks;
  const OpInfo& graph_op =
      updates ? GetOp("aten::_native_batch_norm_legit_functional")
              : (training ? GetOp("aten::_native_batch_norm_legit.no_stats") : infer_op);
  if (updates) {
    types.push_back(TypeOf(mean));
    types.push_back(TypeOf(var));
  }
  Arguments call = ReadArguments(state, graph_op, Rearrange(op, a, graph_op));
  const TapeId first = Emit(state, *call.op, std::move(call.args), std::move(call.operands), types,
                            std::move(call.groups));
  if (updates) {
    Write(state, mean, first + 3);
    Write(state, var, first + 4);
  }
  for (int k = 0; k < 3; ++k) stack->push_back(NewTensor(state, metas[k], first + k));
}

// For ops that begin with input, weight, bias and the running statistics.
void PushNormalised(const Args& a, at::Tensor mean, at::Tensor var, bool training, double momentum,
                    double eps, torch::jit::Stack* stack) {
  auto [out, save_mean, save_rstd] =
      at::native_batch_norm(a[0].toTensor(), TensorOrUndefined(a[1]), TensorOrUndefined(a[2]),
                            std::move(mean), std::move(var), training, momentum, eps);
  for (at::Tensor* t : {&out, &save_mean, &save_rstd}) stack->push_back(std::move(*t));
}

// Pushes an empty reserve, which is where cuDNN keeps data for the gradient.
void PushReserve(const at::Tensor& input, torch::jit::Stack* stack) {
  stack->push_back(at::empty({0}, input.options().dtype(at::kByte)));
}

void NoTraining(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  PushNormalised(a, TensorOrUndefined(a[3]), TensorOrUndefined(a[4]), /*training=*/false,
                 a[5].toDouble(), a[6].toDouble(), stack);
}

void NoUpdate(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::Tensor input = torch::jit::peek(*stack, 0, op.args.size()).toTensor();
  NoTraining(state, op, stack);
  PushReserve(input, stack);
}

void WithUpdate(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  PushNormalised(a, a[3].toTensor(), a[4].toTensor(), /*training=*/true, a[5].toDouble(),
                 a[6].toDouble(), stack);
  PushReserve(a[0].toTensor(), stack);
}

void WithUpdateFunctional(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor mean = a[3].toTensor().clone(), var = a[4].toTensor().clone();
  PushNormalised(a, mean, var, /*training=*/true, a[5].toDouble(), a[6].toDouble(), stack);
  PushReserve(a[0].toTensor(), stack);
  stack->push_back(mean);
  stack->push_back(var);
}

// The gradient of native_batch_norm, with the reserve.
void BatchNormBackward(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const auto mask = a[9].toBoolList();
  auto [dinput, dweight, dbias] = at::native_batch_norm_backward(
      a[0].toTensor(), a[1].toTensor(), TensorOrUndefined(a[2]), TensorOrUndefined(a[3]),
      TensorOrUndefined(a[4]), TensorOrUndefined(a[5]), TensorOrUndefined(a[6]), a[7].toBool(),
      a[8].toDouble(), {mask.get(0), mask.get(1), mask.get(2)});
  for (at::Tensor* t : {&dinput, &dweight, &dbias}) stack->push_back(std::move(*t));
}

// (1 - momentum) · running + momentum · batch
void Update(const at::Tensor& running, const at::Tensor& batch, double momentum) {
  if (running.defined()) {
    running.copy_(at::add(at::mul(running, 1 - momentum), at::mul(batch, momentum)));
  }
}

// Returns the mean and biased variance of the batch; the running variance gets the unbiased one.
// The schema does not say that the op writes running statistics.
void UpdateStatistics(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor input = a[0].toTensor(), running_mean = TensorOrUndefined(a[1]),
                   running_var = TensorOrUndefined(a[2]);
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  const bool half = at::isReducedFloatingType(input.scalar_type());
  auto [var, mean] = at::var_mean(half ? input.to(at::kFloat) : input, dims, at::Scalar(0));
  const double n = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  Update(running_mean, mean, a[3].toDouble());
  Update(running_var, at::mul(var, n / (n - 1)), a[3].toDouble());
  const bool wider = (running_mean.defined() && running_mean.scalar_type() == at::kFloat) ||
                     (running_var.defined() && running_var.scalar_type() == at::kFloat);
  const at::ScalarType kept = half && wider ? at::kFloat : input.scalar_type();
  stack->push_back(mean.to(kept));
  stack->push_back(var.to(kept));
}

constexpr HandlerRow kBatchNormHandlers[] = {
    {"aten::_batch_norm_no_update", &NoUpdate, kReplayable},
    {"aten::_batch_norm_no_update.out", &RunIntoOut},
    {"aten::_batch_norm_with_update", &WithUpdate, kReplayable},
    {"aten::_batch_norm_with_update.out", &RunIntoOut},
    {"aten::_batch_norm_with_update_functional", &WithUpdateFunctional, kReplayable},
    {"aten::_native_batch_norm_legit", &BatchNorm, kReplayable},
    {"aten::_native_batch_norm_legit.out", &RunIntoOut},
    {"aten::_native_batch_norm_legit_no_training", &NoTraining, kReplayable},
    {"aten::_native_batch_norm_legit_no_training.out", &RunIntoOut},
    {"aten::batch_norm_backward", &BatchNormBackward, kReplayable},
    {"aten::batch_norm_update_stats", &UpdateStatistics, kReplayable},
    {"aten::batch_norm_update_stats.out", &RunIntoOut},
    {"aten::native_batch_norm", &BatchNorm, kReplayable},
    {"aten::native_batch_norm.out", &RunIntoOut},
};
static_assert(IsSortedAndUnique(kBatchNormHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> BatchNormHandlers() { return kBatchNormHandlers; }

}  // namespace spmd::trace
