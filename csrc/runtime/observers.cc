// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/observers.h"

namespace spmd::runtime {

std::optional<Observers> Observers::OfThisThread() {
  if (!Observed()) return std::nullopt;
  Observers found;
  found.callbacks_ = at::get_record_function_tls_();
  found.state_ = c10::ThreadLocalDebugInfo::current();
  return found;
}

Observers::Scope::Scope(const Observers& observers)
    : callbacks_(at::get_record_function_tls_()), state_(observers.state_) {
  at::set_record_function_tls_(observers.callbacks_);
}

Observers::Scope::~Scope() { at::set_record_function_tls_(callbacks_); }

bool Observed() { return at::isRecordFunctionEnabled() && at::hasThreadLocalCallbacks(); }

}  // namespace spmd::runtime
