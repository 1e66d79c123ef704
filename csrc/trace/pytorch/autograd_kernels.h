// SPDX-License-Identifier: Apache-2.0
// Kernels above autograd, for calls that PyTorch's own formulas do not cover when a private device
// keeps an op undecomposed.
#pragma once

namespace spmd::trace {

// Registers the kernels above autograd, for the life of the process.
void RegisterAutogradKernels();

}  // namespace spmd::trace
