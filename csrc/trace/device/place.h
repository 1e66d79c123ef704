// SPDX-License-Identifier: Apache-2.0
// Whose kernels run the ops: PyTorch's for the CPU or for a GPU. They differ in a few shapes,
// strides and element types of results, so this is to be known before the first op is recorded.
#pragma once

#include <c10/core/Device.h>

namespace spmd::trace {

// Where the first device's tiles are. The host, until it is set. A backend that only plans counts
// as the host. Thread safety: both may be called from any thread.
void SetFirstPlace(c10::Device device);
c10::Device FirstPlace();

}  // namespace spmd::trace
