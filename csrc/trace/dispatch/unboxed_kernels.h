// SPDX-License-Identifier: Apache-2.0
// Kernels without a stack, for the most frequent ops.
//
// A boxed kernel gets counted arguments: the reference count of each tensor goes from one to two
// and back, and at each change PyTorch takes the GIL to tell the Python object (about a third of
// the cost of an `add`). C++ arguments can be looked at without being counted.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

// The kernel for `op`, which does what RunKernel does; nullopt if it has none.
std::optional<c10::KernelFunction> UnboxedKernel(const OpInfo& op);

}  // namespace spmd::trace
