// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

SessionState& TheSession() {
  static auto* state = new SessionState;
  return *state;
}

}  // namespace spmd::trace
