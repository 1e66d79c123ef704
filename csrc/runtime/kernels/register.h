// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd::runtime {

// Makes the ops of the `spmd` namespace known to PyTorch's dispatcher. Idempotent, thread-safe.
void RegisterKernels();

}  // namespace spmd::runtime
