// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/session_state.h"

#include <utility>

namespace spmd::trace {

namespace {

SessionState* NewSession() {
  auto* const state = new SessionState;
  absl::StatusOr<Options> options = OptionsFromEnvironment();
  state->bad_options = options.status();
  if (options.ok()) state->options = *std::move(options);
  state->programs.SetMostBytes(state->options.program_memory);
  return state;
}

}  // namespace

SessionState& TheSession() {
  static auto* state = NewSession();
  return *state;
}

}  // namespace spmd::trace
