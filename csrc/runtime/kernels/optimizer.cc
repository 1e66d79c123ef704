// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {

namespace {

// PyTorch's kernel overwrites its arguments. Parts of this many elements are copied, then stepped
// while they are in a core's cache: four tensors of f32 are half a megabyte.
constexpr int64_t kPart = 1 << 15;

Tensor Flat(const Tensor& x) { return x.reshape({-1}); }

}  // namespace

std::tuple<Tensor, Tensor, Tensor> Adam_(const Tensor& param, const Tensor& grad,
                                         const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                         const Tensor& step, double lr, double beta1, double beta2,
                                         double weight_decay, double eps, bool decoupled,
                                         bool maximize) {
  if (param.is_contiguous() && exp_avg.is_contiguous() && exp_avg_sq.is_contiguous()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    (decoupled ? at::_ops::_fused_adamw_::call : at::_ops::_fused_adam_::call)(
        {param}, {grad.contiguous()}, {exp_avg}, {exp_avg_sq}, {}, {step}, lr, beta1, beta2,
        weight_decay, eps, /*amsgrad=*/false, maximize, {}, {});
  } else {
    const auto [p, m, v] = Adam(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2,
                                weight_decay, eps, decoupled, maximize);
    param.copy_(p);
    exp_avg.copy_(m);
    exp_avg_sq.copy_(v);
  }
  return {param, exp_avg, exp_avg_sq};
}

std::tuple<Tensor, Tensor, Tensor> Adam(const Tensor& param, const Tensor& grad,
                                        const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                        const Tensor& step, double lr, double beta1, double beta2,
                                        double weight_decay, double eps, bool decoupled,
                                        bool maximize) {
  const auto like = [](const Tensor& x) { return at::empty_like(x, at::MemoryFormat::Contiguous); };
  std::tuple<Tensor, Tensor, Tensor> results(like(param), like(exp_avg), like(exp_avg_sq));
  if (param.is_meta() || param.numel() == 0) return results;
  const Tensor olds[] = {Flat(param), Flat(exp_avg), Flat(exp_avg_sq)};
  const Tensor news[] = {Flat(std::get<0>(results)), Flat(std::get<1>(results)),
                         Flat(std::get<2>(results))};
  const Tensor grads = Flat(grad);  // may be a view with strides, which the kernel ignores
  const auto run = [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto part = [&](const Tensor& x) { return x.narrow(0, begin, end - begin); };
    Tensor updated[3];
    for (int k = 0; k < 3; ++k) updated[k] = part(news[k]).copy_(part(olds[k]));
    Adam_(updated[0], part(grads), updated[1], updated[2], step, lr, beta1, beta2, weight_decay,
          eps, decoupled, maximize);
  };
  const int64_t size = param.numel();
  if (!param.is_cpu()) {
    run(0, size);
    return results;
  }
  // The loop is over parts, so that where a part begins does not depend on the number of threads.
  at::parallel_for(0, (size + kPart - 1) / kPart, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) run(begin * kPart, std::min(size, (begin + 1) * kPart));
  });
  return results;
}

}  // namespace spmd::runtime::kernels
