// SPDX-License-Identifier: Apache-2.0
// Checks for memory that an op both reads and writes, as eager's element-wise kernels check it.
#pragma once

#include <ATen/core/Tensor.h>

namespace spmd::trace {

// Throws: RuntimeError, in PyTorch's words, if `source` and `target` share a part of their memory
// but are not the same view of it. As in eager, views with gaps are not checked.
void CheckNoPartialOverlap(const at::Tensor& target, const at::Tensor& source);

}  // namespace spmd::trace
