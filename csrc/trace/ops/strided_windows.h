// SPDX-License-Identifier: Apache-2.0
// Views by strides that are slices, or overlapping windows over one dimension, as other view ops.
//
//   x [8, 4], as_strided([4, 3], [1, 8], 5)                 =  x[::2, 1][…]… = x[1::2, 1:][:3].t()
//   x [B, 8, d], as_strided([B, 3, 4, d], [8d, 2d, d, 1])  =  x.unfold(1, 4, 2).movedim(-1, 2)
//
// The view is the same. Written so, dimensions are known to be apart, in the gradient, too: strides
// alone make a gather over all elements of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace spmd::trace {

// nullopt if the view is none of slices of dimensions of `self`, in any order.
std::optional<at::Tensor> AsSlices(const at::Tensor& self, at::IntArrayRef size,
                                   at::IntArrayRef stride, std::optional<int64_t> offset);

// nullopt if the view is none of overlapping windows over dimensions of `self` that are one.
std::optional<at::Tensor> AsWindows(const at::Tensor& self, at::IntArrayRef size,
                                    at::IntArrayRef stride, std::optional<int64_t> offset);

}  // namespace spmd::trace
