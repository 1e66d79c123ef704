// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, and ops that only write what they are given.
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/stack.h>

#include <algorithm>

#include "csrc/trace/meta_functions.h"

namespace spmd::trace {

namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor Flip(const Tensor& self, IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());  // checks them
  return MetaInOrderOf(self);
}
Tensor Roll(const Tensor& self, IntArrayRef shifts, IntArrayRef dims) {
  Know(!shifts.empty() && (dims.empty() ? shifts.size() == 1 : dims.size() == shifts.size()));
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, self.dim());
  return MetaInFormatOf(self, self.sizes());
}
bool IsIndex(const Tensor& t) {
  return t.scalar_type() == at::kLong || t.scalar_type() == at::kInt;
}
Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  Know(IsIndex(index) && index.dim() <= 1);
  dim = at::maybe_wrap_dim(dim, self.dim());
  std::vector<int64_t> sizes = self.sizes().vec();
  if (sizes.empty()) {
    Know(index.numel() == 1);
  } else {
    sizes[dim] = index.numel();
  }
  return MetaOfSizes(sizes, self.scalar_type());
}
Tensor Take(const Tensor& self, const Tensor& index) {
  Know(index.scalar_type() == at::kLong && (self.numel() > 0 || index.numel() == 0));
  return MetaOfSizes(index.sizes(), self.scalar_type());
}
Tensor UnfoldBackward(const Tensor& grad, IntArrayRef sizes, int64_t, int64_t, int64_t) {
  return MetaOfSizes(sizes, grad.scalar_type());
}
Tensor Complex(const Tensor& real, const Tensor& imag) {
  Know(real.scalar_type() == imag.scalar_type() && real.is_floating_point());
  const Tensor sum = at::meta::add(real, imag, 1);
  return MetaInOrderOf(sum, c10::toComplexType(sum.scalar_type()));
}

Tensor& MaskedFill(Tensor& self, const Tensor& mask, const at::Scalar& value) {
  Know(mask.scalar_type() == at::kBool && (self.is_complex() || !value.isComplex()));
  return self;
}
Tensor& MaskedFillTensor(Tensor& self, const Tensor& mask, const Tensor& value) {
  Know(mask.scalar_type() == at::kBool && value.dim() == 0);
  Know(self.is_complex() || !value.is_complex());
  return self;
}

// It writes its first argument and gives it back.
void GivesFirst(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size() - 1);
}

}  // namespace

std::vector<MetaKernelRow> ShapeMetaKernels() {
  const auto gives_first = c10::KernelFunction::makeFromBoxedFunction<&GivesFirst>();
  std::vector<MetaKernelRow> rows = {
      {"aten::complex", MetaKernel<&Complex>()},
      {"aten::flip", MetaKernel<&Flip>()},
      {"aten::index_select", MetaKernel<&IndexSelect>()},
      {"aten::masked_fill_.Scalar", MetaKernel<&MaskedFill>()},
      {"aten::masked_fill_.Tensor", MetaKernel<&MaskedFillTensor>()},
      {"aten::polar", MetaKernel<&Complex>()},
      {"aten::roll", MetaKernel<&Roll>()},
      {"aten::take", MetaKernel<&Take>()},
      {"aten::unfold_backward", MetaKernel<&UnfoldBackward>()},
  };
  for (const char* op : {"bernoulli_.float", "cauchy_", "exponential_", "geometric_", "log_normal_",
                         "normal_", "uniform_"}) {
    rows.push_back({std::string("aten::") + op, gives_first});
  }
  return rows;
}

}  // namespace spmd::trace
