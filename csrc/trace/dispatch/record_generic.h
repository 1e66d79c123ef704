// SPDX-License-Identifier: Apache-2.0
// The path of most ops: infers the results' metadata, records the functional twin, and rebinds what
// is written.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

struct SessionState;

// Requires: the session's lock is held; the arguments of `op` are on top of `stack`.
void RunGeneric(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

}  // namespace spmd::trace
