// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/registry.h"
#include "csrc/trace/api/register_kernels.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

absl::Status Session::RegisterRule(rules::Rule rule) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  const OpInfo* op = FindOp(rule.op);
  SPMD_RETURN_IF_ERROR(rules::Register(std::move(rule)));
  if (op != nullptr && !op->handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    TakeWhole(op->handle);
  }
  lock->programs.Clear();  // they were planned without the rule
  return absl::OkStatus();
}

void Session::ForgetPrograms() {
  SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  lock->programs.Clear();
}

}  // namespace spmd::trace
