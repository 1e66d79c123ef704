// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {

// PyTorch's batch normalisation has fast kernels for both: what they know of the images' own
// mean is moved to the one given.
Tensor ChannelSquares(const Tensor& x, const Tensor& mean) {
  if (x.is_meta()) return at::empty_like(mean);
  if (x.numel() == 0) return at::zeros_like(mean);
  const double count = static_cast<double>(x.numel() / x.size(1));
  const auto [own, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
  return own.sub(mean).square_().add_(variance).mul_(count);
}

std::tuple<Tensor, Tensor> ChannelProducts(const Tensor& grad, const Tensor& x,
                                           const Tensor& mean) {
  if (x.is_meta()) return {at::empty_like(mean), at::empty_like(mean)};
  if (x.numel() == 0) return {at::zeros_like(mean), at::zeros_like(mean)};
  const Tensor one = at::ones_like(mean);
  auto [none, product, sum] =
      at::native_batch_norm_backward(grad, x, one, {}, {}, mean, one, /*train=*/true, /*eps=*/0,
                                     /*output_mask=*/{false, true, true});
  return {sum, product};
}

}  // namespace spmd::runtime::kernels
