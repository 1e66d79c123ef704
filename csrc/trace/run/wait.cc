// SPDX-License-Identifier: Apache-2.0
// Waits for a run, and handles Ctrl-C meanwhile.
#include "csrc/trace/run/wait.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/interrupt.h"
#include "csrc/runtime/rounds.h"
#include "csrc/trace/run/lost_steps.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

constexpr std::chrono::milliseconds kLook(50);
constexpr int kLooksBeforeWord = 20;

bool Signalled(SessionState& state) {
  return state.hooks.signalled != nullptr && state.hooks.signalled();
}

// Drops what has not started, and stops what runs if nothing has been overwritten yet. The user
// knows why the values are lost, so this is not reported again. Returns the number of optimizer
// steps that are lost.
int DropWaiting(SessionState& state) {
  {
    const GilReleased no_gil(state);
    static std::atomic<bool> stop{true};
    runtime::SetInterruptCheck(&stop);
    // What this process drops the others would wait for.
    if (state.processes.several()) runtime::FailAsInterrupted(*state.processes.job.programs);
    state.in_flight.queue->DropWaiting();
    state.in_flight.queue->WaitForAll();
    runtime::SetInterruptCheck(nullptr);
  }
  const int steps = TakeLostSteps(state);
  ReportAll(state).IgnoreError();
  return steps;
}

// After Ctrl-C: everything that was enqueued before it runs before Python gets the exception.
[[noreturn]] void EndInterrupted(SessionState& state) {
  std::string note;
  for (int looks = 0;; ++looks) {
    {
      const GilReleased no_gil(state);
      if (state.in_flight.queue->WaitForAll(kLook)) break;
    }
    if (Signalled(state)) {
      const int steps = DropWaiting(state);
      note = absl::StrCat("interrupted twice: ", steps, steps == 1 ? " step" : " steps",
                          " of the optimizer that waited or ran ", steps == 1 ? "is" : "are",
                          " dropped; tensors are those before ", steps == 1 ? "it" : "them",
                          ", and counters are ", steps, steps == 1 ? " step" : " steps", " ahead");
      break;
    }
    if (looks == kLooksBeforeWord && state.hooks.warn != nullptr) {
      state.hooks.warn(
          "interrupted: waiting for what the device has been given to do; interrupt again to drop "
          "what has not begun");
    }
  }
  state.hooks.raise_signal(note);
  std::abort();  // raise_signal throws
}

}  // namespace

absl::Status WaitFor(SessionState& state, const runtime::PendingRun& run) {
  if (run.done()) return run.Wait();
  while (true) {
    {
      const GilReleased no_gil(state);
      if (run.WaitFor(kLook)) return run.Wait();
    }
    if (Signalled(state)) EndInterrupted(state);
  }
}

}  // namespace spmd::trace
