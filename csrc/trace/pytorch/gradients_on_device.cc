// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/gradients_on_device.h"

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

#include <mutex>
#include <optional>
#include <utility>

#include "csrc/trace/pytorch/autograd_shortcuts.h"
#include "csrc/trace/pytorch/make_node.h"

namespace spmd::trace {

namespace {

using autograd::variable_list;

// PyTorch's node, which computes first derivatives as `gradient` does.
template <typename Base>
class NodeOnDevice final : public Base {
 public:
  using Base::Base;

  variable_list apply(variable_list&& grads) override {
    if (at::GradMode::is_enabled() || !grads[0].defined() || !this->should_compute_output(0)) {
      return Base::apply(std::move(grads));
    }
    at::Tensor self, result;
    {
      const std::lock_guard<std::mutex> lock(this->mutex_);
      self = this->self_.unpack();
      result = this->result_.unpack(this->getptr());
    }
    return {Gradient(*this, grads[0], self, result)};
  }
};

// --- the element that max, min and medians of a whole tensor are ---

// Equal elements share the gradient.
template <typename Base>
at::Tensor Gradient(const NodeOnDevice<Base>&, const at::Tensor& grad, const at::Tensor& self,
                    const at::Tensor& result) {
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

at::Tensor Gradient(const NodeOnDevice<nodes::ProdBackward0>&, const at::Tensor& grad,
                    const at::Tensor& self, const at::Tensor& result) {
  const at::Tensor factors = self.to(grad.scalar_type());
  return OfFactors(grad, factors, result, factors.eq(0).sum(), OnesForZeros(factors).prod());
}

at::Tensor Gradient(const NodeOnDevice<nodes::ProdBackward1>& node, const at::Tensor& grad,
                    const at::Tensor& self, const at::Tensor& result) {
  const at::Tensor factors = self.to(grad.scalar_type());
  const auto kept = [&](const at::Tensor& t) {
    return node.keepdim || self.dim() == 0 ? t : t.unsqueeze(node.dim);
  };
  return OfFactors(kept(grad), factors, kept(result), factors.eq(0).sum(node.dim, true),
                   OnesForZeros(factors).prod(node.dim, true));
}

// With y[j] = x[0] · … · x[j] and w = grad · y, the gradient of x[k] is (w[k] + w[k+1] + …) / x[k]
// before the first zero, and 0 behind it. That of the first zero is the sum of grad[j] times the
// product of the other factors of y[j], from the zero up to the next one.
at::Tensor Gradient(const NodeOnDevice<nodes::CumprodBackward0>& node, const at::Tensor& grad_of,
                    const at::Tensor& self, const at::Tensor& result) {
  const int64_t dim = node.dim;
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

void Keep(autograd::Node&) {}
void Keep(nodes::ProdBackward1& node, int64_t dim, bool keepdim, std::optional<at::ScalarType>) {
  node.dim = dim;
  node.keepdim = keepdim;
}
void Keep(nodes::ProdBackward0&, std::optional<at::ScalarType>) {}
void Keep(nodes::CumprodBackward0& node, int64_t dim, std::optional<at::ScalarType>) {
  node.dim = dim;
}

template <typename Op, typename Base, typename... Args>
at::Tensor Call(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
  const bool has_node = at::GradMode::is_enabled() && self.requires_grad();
  if (!has_node || HasTangent(self) || !IsNext(keys)) {
    return Op::redispatch(ToPyTorchsKernel(keys), self, args...);
  }
  const auto node = NewNode<NodeOnDevice<Base>>(EdgesOf(self));
  node->self_ = Saved(self);
  if constexpr (requires { node->self_scalar_type; }) node->self_scalar_type = self.scalar_type();
  Keep(*node, args...);
  const at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, args...);
  }();
  SetHistory(result, node);
  node->result_ = SavedResult(result);
  return result;
}

}  // namespace

void AddGradientsOnDevice(torch::Library& library) {
  using Dtype = std::optional<at::ScalarType>;
  library.impl("max", TORCH_FN((Call<at::_ops::max, nodes::MaxBackward1>)));
  library.impl("min", TORCH_FN((Call<at::_ops::min, nodes::MinBackward1>)));
  library.impl("median", TORCH_FN((Call<at::_ops::median, nodes::MedianBackward0>)));
  library.impl("nanmedian", TORCH_FN((Call<at::_ops::nanmedian, nodes::NanmedianBackward0>)));
  library.impl("prod", TORCH_FN((Call<at::_ops::prod, nodes::ProdBackward0, Dtype>)));
  library.impl(
      "prod.dim_int",
      TORCH_FN((Call<at::_ops::prod_dim_int, nodes::ProdBackward1, int64_t, bool, Dtype>)));
  library.impl("cumprod",
               TORCH_FN((Call<at::_ops::cumprod, nodes::CumprodBackward0, int64_t, Dtype>)));
}

}  // namespace spmd::trace
