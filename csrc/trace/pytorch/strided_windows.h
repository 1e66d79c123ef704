// SPDX-License-Identifier: Apache-2.0
// Views by strides that are overlapping windows over one dimension, as other view ops.
//
//   x [B, 8, d], as_strided([B, 3, 4, d], [8d, 2d, d, 1])  =  x.unfold(1, 4, 2).movedim(-1, 2)
//
// The view is the same. Written so, the other dimensions are known to be apart, in the gradient,
// too: strides alone make a gather over all elements of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace spmd::trace {

// nullopt if the view is none of overlapping windows over dimensions of `self` that are one.
std::optional<at::Tensor> AsWindows(const at::Tensor& self, at::IntArrayRef size,
                                    at::IntArrayRef stride, std::optional<int64_t> offset);

}  // namespace spmd::trace
