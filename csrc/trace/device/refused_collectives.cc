// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device/refused_collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/trace/device/device_type.h"

namespace spmd::trace {

namespace {

void Refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "torch.distributed (", op.operator_name().name, ") has no process group for '",
      TheDevice(),
      "': one process holds all devices of a mesh, and the programs that it runs on them send what "
      "has to be sent. Leave out torch.distributed and its wrappers, and mark the batch: "
      "spmd.mark_sharding(x, mesh, (\"data\", None)); gradients are then reduced by themselves. A "
      "value that other processes need is sent from the host: tensor.cpu()");
}

// PyTorch has kernels for other devices, which look for a backend and do not say what to do.
// PyTorch warns when they are replaced; this class suppresses that warning.
class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

void RefuseCollectives() {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value() || !handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    handles->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&Refuse>(),
        std::nullopt, nullptr, "torch_spmd"));
  }
}

}  // namespace spmd::trace
