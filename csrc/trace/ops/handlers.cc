// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/handlers.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>

#include <vector>

#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/shape/out_types.h"

namespace spmd::trace {

void RunIntoOut(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const OpInfo& plain = GetOp(op.handle.operator_name().name);
  const Args args = PeekArguments(op, stack);
  const std::vector<c10::IValue> out = torch::jit::pop(*stack, op.result_alias.size());
  plain.handler(state, plain, stack);
  const std::vector<c10::IValue> results = torch::jit::pop(*stack, out.size());
  bool same_types = true;
  std::vector<TensorMeta> metas;
  for (size_t k = 0; k < out.size(); ++k) {
    metas.push_back(TensorMeta::Of(results[k].toTensor()));
    same_types = same_types && metas.back().dtype == out[k].toTensor().scalar_type();
  }
  if (!same_types && !TakesOutTypes(op, args, metas)) {
    stack->insert(stack->end(), args.begin(), args.end());
    RunOnHost(state, op, stack);  // raises the error
    return;
  }
  for (size_t k = 0; k < out.size(); ++k) {
    const at::Tensor target = out[k].toTensor(), result = results[k].toTensor();
    at::native::resize_output(target, result.sizes());
    target.copy_(result);
    stack->push_back(target);
  }
}

void FillIfDeterministic(at::Tensor& unwritten) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory()) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  at::native::fill_empty_deterministic_(unwritten);
}

}  // namespace spmd::trace
