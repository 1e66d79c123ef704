// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mm.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

// The tensor [..., n] as [rows, n]; a view if the strides permit it.
Tensor AsRows(const Tensor& x) {
  if (x.dim() == 2) return x;
  const int64_t n = x.size(-1);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return x.reshape({rows, n});
}

}  // namespace

Tensor LinearDInput(const Tensor& grad, const Tensor& weight) {
  TORCH_CHECK(grad.dim() >= 1 && weight.dim() == 2 && grad.size(-1) == weight.size(0),
              "spmd::linear_dinput: grad ", grad.sizes(), " does not fit weight ", weight.sizes(),
              "; the last dimension of grad must be the first of weight");
  Tensor result = at::mm(AsRows(grad), weight.conj());
  if (grad.dim() == 2) return result;
  std::vector<int64_t> size = grad.sizes().vec();
  size.back() = weight.size(1);
  return result.reshape(size);
}

Tensor AddLinearDInput(const Tensor& sum, const Tensor& grad, const Tensor& weight) {
  Tensor result = sum.clone(at::MemoryFormat::Contiguous);
  return AddLinearDInput_(result, grad, weight);  // the same bits as in place
}

Tensor& AddLinearDInput_(Tensor& sum, const Tensor& grad, const Tensor& weight) {
  if (!sum.is_contiguous()) return sum.add_(LinearDInput(grad, weight));
  sum.view({-1, sum.size(-1)}).addmm_(AsRows(grad), weight);
  return sum;
}

Tensor LinearDWeight(const Tensor& grad, const Tensor& input) {
  TORCH_CHECK(grad.dim() >= 1 && grad.dim() == input.dim() &&
                  grad.sizes().slice(0, grad.dim() - 1) == input.sizes().slice(0, grad.dim() - 1),
              "spmd::linear_dweight: grad ", grad.sizes(), " and input ", input.sizes(),
              " must agree in all dimensions but the last");
  return at::mm(AsRows(grad).t(), AsRows(input).conj());
}

}  // namespace spmd::runtime::kernels
