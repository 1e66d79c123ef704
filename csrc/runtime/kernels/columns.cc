// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/col2im.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

using Sizes = std::vector<int64_t>;

// The sizes of x with other channels and other spatial sizes.
Sizes Resized(const Tensor& x, int64_t channels, IntArrayRef spatial) {
  Sizes sizes = x.sizes().vec();
  const size_t at = sizes.size() - 3;
  sizes[at] = channels;
  sizes[at + 1] = spatial[0];
  sizes[at + 2] = spatial[1];
  return sizes;
}

}  // namespace

Tensor Im2Col(const Tensor& image, IntArrayRef output_size, IntArrayRef kernel_size,
              IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride) {
  const Sizes sizes = Resized(image, image.size(-3) * kernel_size[0] * kernel_size[1], output_size);
  if (image.is_meta()) return at::empty(sizes, image.options());
  // A tile may have no position.
  if (output_size[0] == 0 || output_size[1] == 0) return at::zeros(sizes, image.options());
  return at::im2col(image, kernel_size, dilation, padding, stride).view(sizes);
}

Tensor Col2Im(const Tensor& columns, IntArrayRef size, IntArrayRef kernel_size,
              IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride,
              IntArrayRef crop_start) {
  const Sizes sizes = Resized(columns, columns.size(-3) / (kernel_size[0] * kernel_size[1]), size);
  if (columns.is_meta()) return at::empty(sizes, columns.options());
  if (columns.numel() == 0) return at::zeros(sizes, columns.options());
  // First everything that the columns cover, without padding; then the part that is wanted. A tile
  // may lie in a gap between windows or in the padding, where there is nothing.
  Sizes covered;
  for (int d = 0; d < 2; ++d) {
    covered.push_back((columns.size(d - 2) - 1) * stride[d] + (kernel_size[d] - 1) * dilation[d] +
                      1);
  }
  Tensor image = at::col2im(columns.flatten(-2), covered, kernel_size, dilation, {0, 0}, stride);
  Sizes outside;
  for (int d : {1, 0}) {
    const int64_t begin = padding[d] + crop_start[d];
    const int64_t from = std::clamp<int64_t>(begin, 0, covered[d]);
    const int64_t to = std::clamp<int64_t>(begin + size[d], from, covered[d]);
    image = image.narrow(d - 2, from, to - from);
    const int64_t before = std::clamp<int64_t>(-begin, 0, size[d]);
    outside.push_back(before);
    outside.push_back(size[d] - before - (to - from));
  }
  return at::constant_pad_nd(image, outside, 0);
}

}  // namespace spmd::runtime::kernels
