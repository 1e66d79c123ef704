// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/session_lock.h"

#include <utility>

#include "absl/strings/match.h"
#include "csrc/trace/device/place.h"

namespace spmd::trace {

namespace {

SessionState* NewSession() {
  auto* const state = new SessionState;
  absl::StatusOr<Options> options = OptionsFromEnvironment();
  state->bad_options = options.status();
  if (options.ok()) state->options = *std::move(options);
  // Ops may be recorded before the backend is made.
  if (absl::StartsWith(state->options.backend, "cuda")) SetFirstPlace({c10::kCUDA, 0});
  state->programs.SetMostBytes(state->options.program_memory);
  return state;
}

}  // namespace

SessionState& SessionLock::TheSession() {
  static auto* const state = NewSession();
  return *state;
}

void SessionLock::Wait() {
  void* gil = state_.hooks.release_gil != nullptr ? state_.hooks.release_gil() : nullptr;
  session_mutex.Lock();
  if (gil != nullptr) state_.hooks.reacquire_gil(gil);
}

}  // namespace spmd::trace
