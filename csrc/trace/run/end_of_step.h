// SPDX-License-Identifier: Apache-2.0
// The end of an optimizer's step (docs/design/0042-end-of-a-step.md). Its program ends with the
// step, but while `.grad` holds the gradients they are results. So it waits until they are dropped:
//
//   loss.backward()
//   optimizer.step()         nothing more is recorded for its program, which waits
//   optimizer.zero_grad()    the last gradient is dropped: the program runs, and keeps none
//
// Whatever else uses the device comes too early: an op that is no view, a read, a mark, a look at
// programs. The program then runs with the gradients as results.
//
// Thread safety: guarded by the session's lock, except where a function says otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace internal {
inline thread_local bool step_waits = false;
}  // namespace internal
// Whether a step of this thread may wait. May be called at any time, without the lock.
inline bool StepWaits() { return internal::step_waits; }

// Called when an optimizer has stepped: runs what is pending, or lets it wait for `gradients` to be
// dropped. It does not wait if none of them is pending, or if something has failed, which the step
// should report.
// Errors: those of the cut.
absl::Status RunOrWait(SessionState& state, absl::Span<const at::Tensor> gradients);

// Runs the step that waits, if there is one. Errors: those of the cut.
absl::Status RunWaitingStep(SessionState& state);
// The same, only if all gradients for which it waits have been dropped.
absl::Status RunDroppedStep(SessionState& state);

// For the cut: ends the wait. Returns whether a step waited.
bool EndWait(SessionState& state);

}  // namespace spmd::trace
