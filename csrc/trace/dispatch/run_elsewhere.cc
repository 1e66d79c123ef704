// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/dispatch/run_elsewhere.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

bool IsOurs(const OpInfo& op, const Args& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == ArgKind::kDropped && args[i].isDevice()) {
      return args[i].toDevice().type() == kDeviceType;
    }
  }
  return true;
}

}  // namespace

bool RunElsewhere(SessionState& state, const OpInfo& op, const Args& args,
                  torch::jit::Stack* stack) {
  if (IsOurs(op, args)) {
    const int pin = op.FindArg("pin_memory");
    TORCH_CHECK(pin < 0 || args[pin].isNone() || !args[pin].toBool(), op.name,
                ": pin_memory=True for '", TheDevice(), "'; only tensors of the CPU can be pinned");
    return false;
  }
  state.call.looked_at_values = true;  // a tensor elsewhere is made again each time
  const runtime::DispatchGuard guard;
  torch::jit::drop(*stack, args.size());
  for (c10::IValue arg : args) {
    if (arg.isTensor() && Buffer::IsOurs(arg.toTensor())) {
      const at::Tensor t = arg.toTensor();
      arg = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
    }
    stack->push_back(std::move(arg));
  }
  op.handle.callBoxed(stack);
  return true;
}

}  // namespace spmd::trace
