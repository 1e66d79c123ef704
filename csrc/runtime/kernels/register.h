// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd::runtime {

// Registers the ops of the `spmd` namespace with PyTorch's dispatcher. Idempotent. Thread safety:
// may be called from any thread.
void RegisterKernels();

}  // namespace spmd::runtime
