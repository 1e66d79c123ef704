// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

using Sizes = std::vector<int64_t>;

// The last `n` entries; a single entry stands for all.
Sizes Spatial(IntArrayRef values, int64_t n) {
  if (values.size() == 1) return Sizes(n, values[0]);
  TORCH_CHECK(static_cast<int64_t>(values.size()) >= n, "spmd convolution: ", values,
              " needs an entry for each of ", n, " spatial dimensions");
  return Sizes(values.end() - n, values.end());
}

// The number of window positions along a dimension.
int64_t Positions(int64_t input, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation) {
  const int64_t room = input + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// The part [begin, begin + length) of dimension d of x, with zeros where it reaches outside.
Tensor Region(const Tensor& x, int64_t d, int64_t begin, int64_t length) {
  const int64_t n = x.size(d);
  const int64_t from = std::clamp<int64_t>(begin, 0, n);
  const int64_t to = std::clamp<int64_t>(begin + length, from, n);
  Tensor part = x.narrow(d, from, to - from);
  const int64_t before = std::min(std::max<int64_t>(-begin, 0), length);
  const int64_t after = length - (to - from) - before;
  if (before == 0 && after == 0) return part;
  Sizes pad(2 * (x.dim() - d), 0);  // pairs, last dimension first
  pad[pad.size() - 2] = before;
  pad[pad.size() - 1] = after;
  return at::constant_pad_nd(part, pad, 0);
}

}  // namespace

Tensor ConvDInput(const Tensor& grad, const Tensor& weight, IntArrayRef input_size,
                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                  IntArrayRef crop_start) {
  const int64_t n = grad.dim() - 2;
  const Sizes size = Spatial(input_size, n), strides = Spatial(stride, n),
              pads = Spatial(padding, n), dilations = Spatial(dilation, n),
              crop = Spatial(crop_start, n);
  Sizes full{grad.size(0), weight.size(1) * groups};
  full.insert(full.end(), size.begin(), size.end());
  if (grad.is_meta()) return at::empty(full, grad.options());
  // A tile may have no row of the output.
  if (grad.numel() == 0) return at::zeros(full, grad.options());

  // Relative to the wanted region, the windows begin at −(padding + crop), which is another
  // padding.
  Sizes shifted(n);
  bool plain = true;
  for (int64_t d = 0; d < n; ++d) {
    shifted[d] = pads[d] + crop[d];
    plain = plain && shifted[d] >= 0 && grad.size(d + 2) > 0 &&
            Positions(size[d], weight.size(d + 2), strides[d], shifted[d], dilations[d]) ==
                grad.size(d + 2);
  }
  if (plain) {
    return std::get<0>(at::convolution_backward(
        grad, at::empty(full, grad.options()), weight, std::nullopt, strides, shifted, dilations,
        /*transposed=*/false, Sizes(n, 0), groups, std::array<bool, 3>{true, false, false}));
  }
  // First everything that the windows touch, then the region.
  Tensor all = at::convolution(grad, weight, std::nullopt, strides, Sizes(n, 0), dilations,
                               /*transposed=*/true, Sizes(n, 0), groups);
  for (int64_t d = 0; d < n; ++d) all = Region(all, d + 2, shifted[d], size[d]);
  return all;
}

Tensor ConvDWeight(const Tensor& grad, const Tensor& input, IntArrayRef weight_size,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  const int64_t n = grad.dim() - 2;
  if (grad.is_meta()) return at::empty(weight_size, grad.options());
  const Sizes kernel = Spatial(weight_size, n), strides = Spatial(stride, n),
              dilations = Spatial(dilation, n);
  Sizes pads = Spatial(padding, n);
  Tensor x = input;
  for (int64_t d = 0; d < n; ++d) {
    if (Positions(x.size(d + 2), kernel[d], strides[d], pads[d], dilations[d]) ==
        grad.size(d + 2)) {
      continue;
    }
    // The tile reaches further than the windows of grad, so it is restricted to them, padding
    // included.
    const int64_t reach = (grad.size(d + 2) - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1;
    x = Region(x, d + 2, -pads[d], reach);
    pads[d] = 0;
  }
  return std::get<1>(at::convolution_backward(
      grad, x, at::empty(weight_size, grad.options()), std::nullopt, strides, pads, dilations,
      /*transposed=*/false, Sizes(n, 0), groups, std::array<bool, 3>{false, true, false}));
}

}  // namespace spmd::runtime::kernels
