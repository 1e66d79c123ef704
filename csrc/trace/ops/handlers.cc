// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/handlers.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>

#include <vector>

namespace spmd::trace {

void RunIntoOut(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const OpInfo& plain = GetOp(op.handle.operator_name().name);
  const std::vector<c10::IValue> out = torch::jit::pop(*stack, op.result_alias.size());
  plain.handler(state, plain, stack);
  const std::vector<c10::IValue> results = torch::jit::pop(*stack, out.size());
  for (size_t k = 0; k < out.size(); ++k) {
    const at::Tensor target = out[k].toTensor(), result = results[k].toTensor();
    at::native::resize_output(target, result.sizes());
    target.copy_(result);
    stack->push_back(target);
  }
}

}  // namespace spmd::trace
