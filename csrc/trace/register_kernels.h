// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd::trace {

// Registers the kernels of all ops of the dispatcher.
void RegisterKernels();

}  // namespace spmd::trace
