// SPDX-License-Identifier: Apache-2.0
// Creation of tensors like one of the device's, but on another device or in pinned memory.
#pragma once

#include "csrc/trace/recorder/arguments.h"

namespace spmd::trace {

// False if the result belongs on this device; the stack is then unchanged. Otherwise PyTorch's own
// kernel, which needs only the form of the tensors in `args`, has put the result on `stack`.
// Throws: c10::Error if the result would be on this device and pinned.
bool RunElsewhere(SessionState& state, const OpInfo& op, const Args& args,
                  torch::jit::Stack* stack);

}  // namespace spmd::trace
