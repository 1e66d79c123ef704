// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

void SessionLock::Wait() {
  void* gil = state_.hooks.release_gil != nullptr ? state_.hooks.release_gil() : nullptr;
  state_.mutex.Lock();
  if (gil != nullptr) state_.hooks.reacquire_gil(gil);
}

}  // namespace spmd::trace
