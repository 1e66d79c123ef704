// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "csrc/runtime/kernels/kernels.h"
#include "csrc/runtime/kernels/vector_clones.h"

namespace spmd::runtime::kernels {
namespace {

// The number of elements that is worth a thread, as in PyTorch's own loops.
constexpr int64_t kGrain = 32768;

// Planes of `size` elements, one after another, for channel after channel.
template <typename T>
struct Planes {
  const T *offset, *x, *factor;  // per channel, per plane, per channel
  T* out;
  int64_t channels, size;
};

template <typename T>
SPMD_INLINE void Affine(const Planes<T>& planes, int64_t begin, int64_t end) {
  const int64_t size = planes.size;
  for (int64_t plane = begin; plane < end; ++plane) {
    const T offset = planes.offset[plane % planes.channels];
    const T factor = planes.factor[plane % planes.channels];
    const T* x = planes.x + plane * size;
    T* out = planes.out + plane * size;
    for (int64_t i = 0; i < size; ++i) out[i] = offset + x[i] * factor;
  }
}

// The compiler contracts this into fused multiply-adds where the machine has them, as in addcmul:
// an element must not depend on which of the two computes it.
SPMD_VECTOR_CLONES
void AffineOf(const Planes<float>& planes, int64_t begin, int64_t end) {
  Affine(planes, begin, end);
}
SPMD_VECTOR_CLONES
void AffineOf(const Planes<double>& planes, int64_t begin, int64_t end) {
  Affine(planes, begin, end);
}

template <typename T>
Tensor AffineOf(const Tensor& offset, const Tensor& x, const Tensor& factor) {
  Tensor out = at::empty_like(x);
  const int64_t channels = x.size(1), count = x.size(0) * channels, size = x.numel() / count;
  const Tensor offsets = offset.contiguous(), factors = factor.contiguous();
  const Planes<T> planes{offsets.const_data_ptr<T>(),
                         x.const_data_ptr<T>(),
                         factors.const_data_ptr<T>(),
                         out.mutable_data_ptr<T>(),
                         channels,
                         size};
  at::parallel_for(0, count, std::max<int64_t>(kGrain / size, 1),
                   [&](int64_t begin, int64_t end) { AffineOf(planes, begin, end); });
  return out;
}

// Whether x consists of planes one after another with more than one element each, and v has one
// number per channel.
bool IsPlanes(const Tensor& x) {
  return x.is_cpu() && x.dim() > 2 && x.is_contiguous() && x.numel() > x.size(0) * x.size(1);
}
bool IsPerChannel(const Tensor& v, const Tensor& x) {
  return v.is_cpu() && v.scalar_type() == x.scalar_type() && v.dim() == x.dim() &&
         v.size(1) == x.size(1) && v.numel() == x.size(1);
}

}  // namespace

// PyTorch's loop for addcmul is scalar if two operands have stride 0 along the innermost dimension;
// otherwise it is as fast, whatever the strides.
Tensor ChannelAffine(const Tensor& offset, const Tensor& x, const Tensor& factor) {
  if (IsPlanes(x) && IsPerChannel(offset, x) && IsPerChannel(factor, x)) {
    if (x.scalar_type() == at::kFloat) return AffineOf<float>(offset, x, factor);
    if (x.scalar_type() == at::kDouble) return AffineOf<double>(offset, x, factor);
  }
  return at::addcmul(offset, x, factor);
}

// PyTorch's batch normalization has fast kernels for ChannelSquares and ChannelProducts. They give
// sums about the images' own mean, which are shifted to the given one.
Tensor ChannelSquares(const Tensor& x, const Tensor& mean) {
  if (x.is_meta()) return at::empty_like(mean);
  if (x.numel() == 0) return at::zeros_like(mean);
  const double count = static_cast<double>(x.numel() / x.size(1));
  const auto [own, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
  return own.sub(mean).square_().add_(variance).mul_(count);
}

// The sum of squares has 53 bits, so that the squared mean of all images can be subtracted from it.
// The mean and the variance of these images are computed first, as they are without devices.
std::tuple<Tensor, Tensor> ChannelMoments(const Tensor& x) {
  const auto options = x.options().dtype(at::kDouble);
  if (x.is_meta()) return {at::empty({x.size(1)}, options), at::empty({x.size(1)}, options)};
  if (x.numel() == 0) return {at::zeros({x.size(1)}, options), at::zeros({x.size(1)}, options)};
  const double count = static_cast<double>(x.numel() / x.size(1));
  const auto [mean, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
  const Tensor wide = mean.to(at::kDouble);
  return {wide.mul(count), wide.square().add_(variance).mul_(count)};
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
