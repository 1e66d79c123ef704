// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Waits for the run and returns its status. After a signal whose handler raises (Ctrl-C), waits for
// everything that was enqueued and throws the handler's exception. After a second signal, programs
// that have not started are dropped, and the running one stops if it has not overwritten anything
// yet; the message counts the optimizer steps that are lost.
absl::Status WaitFor(SessionState& state, const runtime::PendingRun& run);

}  // namespace spmd::trace
