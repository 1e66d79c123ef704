// SPDX-License-Identifier: Apache-2.0
// Kernels without a stack, for the ops that programs are full of.
//
// A boxed kernel gets its arguments counted: each tensor's count goes from one to two and back, and
// at each change PyTorch takes the GIL to tell the Python object (about a third of what an `add`
// costs). Where the arguments come as C++ has them, they can be looked at without being counted.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "csrc/trace/op_info.h"

namespace spmd::trace {

// Nothing for an op that has none. Does what RunKernel does.
std::optional<c10::KernelFunction> UnboxedKernel(const OpInfo& op);

}  // namespace spmd::trace
