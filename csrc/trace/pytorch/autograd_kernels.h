// SPDX-License-Identifier: Apache-2.0
// Kernels above autograd, for calls that PyTorch's own formulas do not cover when a private device
// keeps an op undecomposed.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace spmd::trace {

// Registers the kernels above autograd. They stay registered while the handles live.
std::vector<c10::RegistrationHandleRAII> RegisterAutogradKernels();

}  // namespace spmd::trace
