// SPDX-License-Identifier: Apache-2.0
// The product of a matrix and the lanes of another one, of which each device has one, as one step
// of autograd: PyTorch's has one node for a batch of products and one for the matrix that is
// repeated, and its engine spends more on a node than recording does.
#pragma once

#include <ATen/core/Tensor.h>

namespace spmd::trace {

// For each lane, matrix · lane. The gradient of `matrix` [m, k] is a sum over lanes. Requires:
// `lanes` is [lanes, k, n] and of the same type, both are the device's, none has a tangent, and the
// device's kernels are next behind autograd's.
at::Tensor LanesProduct(const at::Tensor& matrix, const at::Tensor& lanes);

}  // namespace spmd::trace
