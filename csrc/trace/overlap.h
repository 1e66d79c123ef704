// SPDX-License-Identifier: Apache-2.0
// Memory that an op reads and writes at once, as eager's element-wise kernels judge it.
#pragma once

#include <ATen/core/Tensor.h>

namespace spmd::trace {

// Errors: RuntimeError, in PyTorch's words, where `source` and `target` share a part of their
// memory but are not the same view of it. Views with gaps are not judged, as in eager.
void CheckNoPartialOverlap(const at::Tensor& target, const at::Tensor& source);

}  // namespace spmd::trace
