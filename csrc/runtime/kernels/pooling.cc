// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

using Sizes = std::vector<int64_t>;

Sizes WithSpatial(const Tensor& x, IntArrayRef spatial) {
  Sizes sizes = x.sizes().vec();
  std::copy(spatial.begin(), spatial.end(), sizes.end() - spatial.size());
  return sizes;
}

// Positions of a row-major plane of `from` sizes, as positions of one of `to` sizes whose index i
// is index i + shift of the first. `inside` says which lie in it; the others are moved to its
// border.
Tensor Renumber(Tensor flat, IntArrayRef from, IntArrayRef to, IntArrayRef shift, Tensor* inside) {
  Tensor result;
  int64_t stride = 1;
  for (int64_t d = static_cast<int64_t>(from.size()) - 1; d >= 0; --d) {
    const Tensor index = flat.remainder(from[d]).sub_(shift[d]);
    flat = flat.div(from[d], "floor");
    const Tensor held = index.clamp(0, to[d] - 1);
    if (inside != nullptr) {
      const Tensor here = index.eq(held);
      *inside = inside->defined() ? inside->logical_and(here) : here;
    }
    result = result.defined() ? result.add(held, stride) : held;
    stride *= to[d];
  }
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> MaxPool(const Tensor& input, IntArrayRef output_size,
                                   IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                                   IntArrayRef dilation, IntArrayRef offset, IntArrayRef plane) {
  const int64_t n = static_cast<int64_t>(plane.size());
  TORCH_CHECK(n == 2 || n == 3, "spmd max_pool: ", n, " spatial dimensions, 2 or 3 expected");
  if (input.is_meta()) {
    const Sizes sizes = WithSpatial(input, output_size);
    return {at::empty(sizes, input.options()), at::empty(sizes, input.options().dtype(at::kLong))};
  }
  // Exactly what the windows see: borders in front, then as far as the last window reaches.
  Sizes pad, shift(n), padded(n);
  for (int64_t d = n - 1; d >= 0; --d) {
    const int64_t size = input.size(input.dim() - n + d);
    padded[d] = (output_size[d] - 1) * stride[d] + (kernel_size[d] - 1) * dilation[d] + 1;
    shift[d] = padding[d] - offset[d];
    pad.push_back(padding[d]);
    pad.push_back(padded[d] - padding[d] - size);
  }
  const bool needed = std::any_of(pad.begin(), pad.end(), [](int64_t p) { return p != 0; });
  const Tensor x =
      needed ? at::constant_pad_nd(input, pad, -std::numeric_limits<double>::infinity()) : input;
  auto [out, indices] = n == 2 ? at::max_pool2d_with_indices(x, kernel_size, stride, 0, dilation)
                               : at::max_pool3d_with_indices(x, kernel_size, stride, 0, dilation);
  return {out, Renumber(indices, padded, plane, shift, nullptr)};
}

Tensor MaxPoolDInput(const Tensor& grad, const Tensor& indices, IntArrayRef input_size,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                     IntArrayRef dilation, IntArrayRef offset, IntArrayRef plane) {
  const int64_t n = static_cast<int64_t>(plane.size());
  const Sizes sizes = WithSpatial(grad, input_size);
  if (grad.is_meta()) return at::empty(sizes, grad.options());
  Tensor inside;
  const Tensor to = Renumber(indices, plane, input_size, offset, &inside);
  const int64_t first = grad.dim() - n;
  Tensor result = at::zeros(sizes, grad.options());
  // Gradients of other tiles add zero.
  const Tensor mine = grad.mul(inside);
  result.flatten(first).scatter_add_(-1, to.flatten(first), mine.flatten(first));
  return result;
}

}  // namespace spmd::runtime::kernels
