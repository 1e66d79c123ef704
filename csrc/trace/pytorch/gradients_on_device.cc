// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/gradients_on_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/nanmedian_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "csrc/trace/pytorch/autograd_keys.h"

namespace spmd::trace {

namespace {

namespace ops = at::_ops;
using torch::autograd::AutogradContext, torch::autograd::variable_list;
using Dtype = std::optional<at::ScalarType>;

// --- the element that max, min and medians of a whole tensor are ---

// Equal elements share the gradient.
at::Tensor OfElement(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& result) {
  const at::Tensor is_it = self.eq(result).logical_or_(self.isnan().logical_and_(result.isnan()));
  return at::where(is_it, grad / is_it.sum(), at::zeros({}, grad.options()));
}

// --- products ---

// Of one factor: the product divided by it; for a zero, the product of the others, which is the
// product again if there is another zero.
at::Tensor OfFactors(const at::Tensor& grad, const at::Tensor& factors, const at::Tensor& product,
                     const at::Tensor& zeros, const at::Tensor& others) {
  const at::Tensor of_zero = at::where(zeros.eq(1), others, product);
  return grad * at::where(factors.eq(0), of_zero, product / factors).conj();
}

at::Tensor OnesForZeros(const at::Tensor& factors) { return factors.masked_fill(factors.eq(0), 1); }

at::Tensor OfProduct(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& result,
                     Dtype) {
  const at::Tensor factors = self.to(grad.scalar_type());
  return OfFactors(grad, factors, result, factors.eq(0).sum(), OnesForZeros(factors).prod());
}

at::Tensor OfProductAlong(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& result,
                          int64_t dim, bool keepdim, Dtype) {
  const at::Tensor factors = self.to(grad.scalar_type());
  const auto kept = [&](const at::Tensor& t) {
    return keepdim || self.dim() == 0 ? t : t.unsqueeze(dim);
  };
  return OfFactors(kept(grad), factors, kept(result), factors.eq(0).sum(dim, true),
                   OnesForZeros(factors).prod(dim, true));
}

// With y[j] = x[0] · … · x[j] and w = grad · y, the gradient of x[k] is (w[k] + w[k+1] + …) / x[k]
// before the first zero, and 0 behind it. That of the first zero is the sum of grad[j] times the
// product of the other factors of y[j], from the zero up to the next one.
at::Tensor OfCumulativeProduct(const at::Tensor& grad_of, const at::Tensor& self,
                               const at::Tensor& result, int64_t dim, Dtype) {
  const at::Tensor grad = grad_of.to(self.scalar_type());
  if (self.dim() == 0 || self.size(dim) == 1) return grad;
  const at::Tensor factors = self.conj(), products = result.conj();
  const at::Tensor nothing = at::zeros({}, grad.options());
  const at::Tensor zeros = self.eq(0).cumsum(dim);
  const at::Tensor before = zeros.eq(0), within = zeros.eq(1);
  const at::Tensor w = at::where(before, products * grad, nothing);
  const at::Tensor from_here = w.flip(dim).cumsum(dim).flip(dim);
  const at::Tensor other_products = OnesForZeros(factors).cumprod(dim);
  const at::Tensor of_first = at::where(within, grad * other_products, nothing).sum(dim, true);
  const at::Tensor is_first = within.logical_and(self.eq(0));
  return at::where(before, from_here / factors, at::where(is_first, of_first, nothing));
}

// --- the kernels ---

thread_local bool pytorchs = false;  // calls go to PyTorch's kernels

// The op, with `gradient` for first derivatives.
template <typename Op, auto gradient, typename... Args>
struct OnDevice : torch::autograd::Function<OnDevice<Op, gradient, Args...>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, Args... args) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor result = Op::call(self, args...);
    context->save_for_backward({self, result});
    context->saved_data["args"] = std::tuple<Args...>(args...);
    context->set_materialize_grads(false);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    variable_list results(1 + sizeof...(Args));
    if (!grads[0].defined()) return results;
    const auto of = [&](Args... args) {
      return at::GradMode::is_enabled() ? ByPyTorch(grads[0], saved[0], args...)
                                        : gradient(grads[0], saved[0], saved[1], args...);
    };
    results[0] = std::apply(of, context->saved_data["args"].to<std::tuple<Args...>>());
    return results;
  }

 private:
  // The gradient as PyTorch's node computes it, which can be differentiated.
  static at::Tensor ByPyTorch(const at::Tensor& grad, const at::Tensor& self, Args... args) {
    const at::Tensor result = [&] {
      const absl::Cleanup restore = [before = std::exchange(pytorchs, true)] { pytorchs = before; };
      return Op::call(self, args...);
    }();
    return torch::autograd::grad({result}, {self}, {grad}, /*retain_graph=*/true,
                                 /*create_graph=*/true)[0];
  }
};

template <typename Op, auto gradient, typename... Args>
at::Tensor Call(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
  const bool differentiated = at::GradMode::is_enabled() && self.requires_grad();
  if (!differentiated || pytorchs || HasTangent(self) || !IsNext(keys)) {
    return Op::redispatch(ToPyTorchsKernel(keys), self, args...);
  }
  return OnDevice<Op, gradient, Args...>::apply(self, args...);
}

}  // namespace

void AddGradientsOnDevice(torch::Library& library) {
  library.impl("max", TORCH_FN((Call<ops::max, &OfElement>)));
  library.impl("min", TORCH_FN((Call<ops::min, &OfElement>)));
  library.impl("median", TORCH_FN((Call<ops::median, &OfElement>)));
  library.impl("nanmedian", TORCH_FN((Call<ops::nanmedian, &OfElement>)));
  library.impl("prod", TORCH_FN((Call<ops::prod, &OfProduct, Dtype>)));
  library.impl("prod.dim_int",
               TORCH_FN((Call<ops::prod_dim_int, &OfProductAlong, int64_t, bool, Dtype>)));
  library.impl("cumprod", TORCH_FN((Call<ops::cumprod, &OfCumulativeProduct, int64_t, Dtype>)));
}

}  // namespace spmd::trace
