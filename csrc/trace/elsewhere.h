// SPDX-License-Identifier: Apache-2.0
// Tensors that are to be made like one of ours, but on another device or in pinned memory.
#pragma once

#include "csrc/trace/arguments.h"

namespace spmd::trace {

// False: the result is to be ours, and the stack is as it was. Else PyTorch's own kernel has made
// it, which takes of tensors their form only.
// Throws: c10::Error when it is to be ours and pinned.
bool RunElsewhere(const OpInfo& op, const Args& args, torch::jit::Stack* stack);

}  // namespace spmd::trace
