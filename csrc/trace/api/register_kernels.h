// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace spmd::trace {

// Registers the kernels of all ops of the dispatcher.
void RegisterKernels();
// From now on the user's op arrives undecomposed, even if it has a kernel that fits every device.
void TakeWhole(const c10::OperatorHandle& handle);

}  // namespace spmd::trace
