// SPDX-License-Identifier: Apache-2.0
// Runs an op at once on host copies: for shapes that depend on data, and for ops whose results
// PyTorch cannot infer. Always right, never fast.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

struct SessionState;

// Requires: the session's lock is held; the arguments of `op` are on top of `stack`.
void RunOnHost(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

}  // namespace spmd::trace
