// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/where.h>
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

// Converts row-major positions in a plane of sizes `from` to positions in a plane of sizes `to`,
// whose index i is index i + shift of the first. `hold(index, d)` moves indices along dimension d
// into the second plane.
template <typename Hold>
Tensor Renumber(Tensor flat, IntArrayRef from, IntArrayRef to, IntArrayRef shift, Hold hold) {
  Tensor result;
  int64_t stride = 1;
  for (int64_t d = static_cast<int64_t>(from.size()) - 1; d >= 0; --d) {
    const Tensor index = (d > 0 ? flat.remainder(from[d]) : flat).sub(shift[d]);
    if (d > 0) flat = flat.div(from[d], "floor");
    const Tensor held = hold(index, d);
    result = result.defined() ? result.add(held, stride) : held;
    stride *= to[d];
  }
  return result;
}

// The extent of a window.
int64_t Reach(int64_t kernel, int64_t dilation) { return (kernel - 1) * dilation + 1; }

// True if PyTorch's pooling of the whole plane has these windows.
bool IsWholePlane(const Tensor& input, IntArrayRef output_size, IntArrayRef kernel_size,
                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, IntArrayRef offset,
                  IntArrayRef plane) {
  const int64_t n = static_cast<int64_t>(plane.size());
  for (int64_t d = 0; d < n; ++d) {
    const int64_t reach = Reach(kernel_size[d], dilation[d]);
    const int64_t room = plane[d] + 2 * padding[d] - reach;
    if (input.size(input.dim() - n + d) != plane[d] || offset[d] != 0 || room < 0 ||
        room / stride[d] + 1 != output_size[d] || padding[d] > reach / 2) {
      return false;
    }
  }
  return true;
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
  const auto pool = [&](const Tensor& x, IntArrayRef border) {
    return n == 2 ? at::max_pool2d_with_indices(x, kernel_size, stride, border, dilation)
                  : at::max_pool3d_with_indices(x, kernel_size, stride, border, dilation);
  };
  if (IsWholePlane(input, output_size, kernel_size, stride, padding, dilation, offset, plane)) {
    return pool(input, padding);
  }
  // Pads or crops the input to exactly what the windows read: the border in front, then as far as
  // the last window reaches.
  Sizes pad, shift(n), padded(n);
  for (int64_t d = n - 1; d >= 0; --d) {
    const int64_t size = input.size(input.dim() - n + d);
    padded[d] = (output_size[d] - 1) * stride[d] + Reach(kernel_size[d], dilation[d]);
    shift[d] = padding[d] - offset[d];
    pad.push_back(padding[d]);
    pad.push_back(padded[d] - padding[d] - size);
  }
  const bool needed = std::any_of(pad.begin(), pad.end(), [](int64_t p) { return p != 0; });
  const Tensor x =
      needed ? at::constant_pad_nd(input, pad, -std::numeric_limits<double>::infinity()) : input;
  auto [out, indices] = pool(x, 0);
  // If all elements of a window are -inf, the index is that of its first element that is not in the
  // border.
  const auto hold = [&](const Tensor& index, int64_t d) {
    if (shift[d] <= 0) return index;
    const Tensor first = index.remainder(dilation[d]).clamp_max_(plane[d] - 1);
    return at::where(index.lt(0), first, index);
  };
  return {out, Renumber(indices, padded, plane, shift, hold)};
}

Tensor MaxPoolDInput(const Tensor& grad, const Tensor& indices, IntArrayRef input_size,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                     IntArrayRef dilation, IntArrayRef offset, IntArrayRef plane) {
  const int64_t n = static_cast<int64_t>(plane.size());
  const Sizes sizes = WithSpatial(grad, input_size);
  if (grad.is_meta()) return at::empty(sizes, grad.options());
  // If the last dimensions are whole, they form rows that lie in the tile or outside it as one.
  Sizes from = plane.vec(), to = input_size.vec(), shift = offset.vec();
  while (from.size() > 1 && from.back() == to.back() && shift.back() == 0) {
    const int64_t row = from.back();
    for (Sizes* sizes : {&from, &to, &shift}) {
      sizes->pop_back();
      sizes->back() *= row;
    }
  }
  Tensor inside;  // undefined: all are inside
  const auto hold = [&](const Tensor& index, int64_t d) {
    if (from[d] == to[d] && shift[d] == 0) return index;
    const Tensor held = index.clamp(0, to[d] - 1), here = index.eq(held);
    inside = inside.defined() ? inside.logical_and(here) : here;
    return held;
  };
  const Tensor position = Renumber(indices, from, to, shift, hold);
  const int64_t first = grad.dim() - n;
  const at::ScalarType type = grad.scalar_type();
  // Windows overlap, so the gradients of half types are added up in f32.
  const at::ScalarType work = at::isReducedFloatingType(type) ? at::kFloat : type;
  Tensor result = at::zeros(sizes, grad.options().dtype(work));
  // Gradients whose indices are in other tiles add zero.
  const Tensor mine = (inside.defined() ? grad.mul(inside) : grad).to(work);
  result.flatten(first).scatter_add_(-1, position.flatten(first), mine.flatten(first));
  return result.to(type);
}

}  // namespace spmd::runtime::kernels
