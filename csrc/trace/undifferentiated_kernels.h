// SPDX-License-Identifier: Apache-2.0
// Kernels above autograd for calls that nothing differentiates: without grad mode, or of tensors
// without gradients and tangents. PyTorch's own would look at every argument, count it, and pass
// the call on; that costs half as much as recording it. Version counters and what views know of
// each other are below, and stay PyTorch's.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "csrc/trace/op_info.h"

namespace spmd::trace {

// For AutogradPrivateUse1. Nothing for an op that has none.
std::optional<c10::KernelFunction> UndifferentiatedKernel(const OpInfo& op);

}  // namespace spmd::trace
