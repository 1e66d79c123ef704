// SPDX-License-Identifier: Apache-2.0
// Takes the results of runs in flight, and reports their failures.
#pragma once

#include "absl/status/status.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Waits for the run that makes `value`, if there is one; then `value` has tiles or is on the host.
// Errors: those of the run, reported once; afterwards `value` is what its Buffer held before, or is
// lost.
absl::Status Resolve(SessionState& state, Value& value);
// Takes the results of runs that are done, up to the first failure that has not been reported.
void Collect(SessionState& state);
// Waits for all runs. Errors: that of the first run whose failure has not been reported.
absl::Status ReportAll(SessionState& state);

}  // namespace spmd::trace
