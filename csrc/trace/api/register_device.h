// SPDX-License-Identifier: Apache-2.0
// The PrivateUse1 device `spmd`: everything that PyTorch asks of a backend.
#pragma once

namespace spmd::trace {

// Registers guard, allocator, hooks, generator and all kernels. Called once per process.
// Throws: c10::Error if the key is taken already.
void RegisterDevice();

}  // namespace spmd::trace
