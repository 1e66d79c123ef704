// SPDX-License-Identifier: Apache-2.0
// A cut makes a program of what is pending and runs it; Buffers get its results.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "csrc/trace/run/failures.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Runs what is pending. `why` is for explain_compile; if a step of an optimizer waits, it is that.
// `ended_task` is the autograd task that has just ended with gradients to which later passes add;
// these may stay partial sums. `asked` is the Buffer that is read, if any. Errors: those of the
// program; what was pending is then lost and says so when it is read.
absl::Status Cut(SessionState& state, const std::string& why, int64_t ended_task = -1,
                 Failures failures = Failures::kNone, const Buffer* asked = nullptr);

// Runs what is pending until `buffer` holds a value that a program has returned as it is. For one
// that has left as rows of blocks, these are two programs: the second one does not write by their
// list, so that it returns them whole.
absl::Status CutFor(SessionState& state, Buffer* buffer, const std::string& why);

}  // namespace spmd::trace
