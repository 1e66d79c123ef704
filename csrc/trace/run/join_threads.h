// SPDX-License-Identifier: Apache-2.0
// Where a value that one thread computes is used by another one (csrc/trace/session/threads.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// If what `buffer` holds is pending on the tape of another thread, takes it from there. The records
// that nothing else on that tape needs are appended to the session's tape, so that this thread's
// program is the same wherever the other thread is: a batch that is prepared in a thread becomes a
// part of the step. Otherwise (parameters that another thread trains) the other tape is cut.
// Requires: the session's lock is held. Throws: what the other thread's program throws.
void TakeFromThread(Buffer& buffer);

// Cuts the tapes of all threads but that which holds the session. Errors: the first one of these.
absl::Status CutOthers(SessionState& state, const std::string& why);

}  // namespace spmd::trace
