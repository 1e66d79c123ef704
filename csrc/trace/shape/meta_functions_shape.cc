// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, and ops that only write what they are given.
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/stack.h>

#include <algorithm>

#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor Flip(const Tensor& self, IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());  // checks the dims
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

Tensor& IndexFill(Tensor& self, int64_t dim, const Tensor& index, const at::Scalar& value) {
  Know(index.scalar_type() == at::kLong && index.dim() <= 1);
  Know(self.is_complex() || !value.isComplex());
  at::maybe_wrap_dim(dim, self.dim());
  return self;
}
Tensor& IndexFillTensor(Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
  Know(index.scalar_type() == at::kLong && index.dim() <= 1 && value.dim() == 0);
  Know(self.is_complex() || !value.is_complex());
  at::maybe_wrap_dim(dim, self.dim());
  return self;
}

Tensor& MaskedScatter(Tensor& self, const Tensor& mask, const Tensor& source) {
  Know(mask.scalar_type() == at::kBool && source.scalar_type() == self.scalar_type());
  return self;
}

Tensor Repeat(const Tensor& self, IntArrayRef repeats) {
  Know(static_cast<int64_t>(repeats.size()) >= self.dim());
  std::vector<int64_t> sizes = repeats.vec();
  const size_t added = repeats.size() - self.sizes().size();
  for (size_t d = 0; d < sizes.size(); ++d) {
    Know(sizes[d] >= 0);
    if (d >= added) sizes[d] *= self.sizes()[d - added];
  }
  return MetaOfSizes(sizes, self.scalar_type());
}

// From [*, C·r·r, H, W] to [*, C, H·r, W·r].
Tensor PixelShuffle(const Tensor& self, int64_t r) {
  Know(self.dim() >= 3 && self.numel() > 0 && r > 0 && self.size(-3) % (r * r) == 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  const size_t n = sizes.size();
  sizes[n - 3] /= r * r;
  sizes[n - 2] *= r;
  sizes[n - 1] *= r;
  return MetaInFormatOf(self, sizes);
}
Tensor PixelUnshuffle(const Tensor& self, int64_t r) {
  Know(self.dim() >= 3 && self.numel() > 0 && r > 0);
  Know(self.size(-2) % r == 0 && self.size(-1) % r == 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  const size_t n = sizes.size();
  sizes[n - 3] *= r * r;
  sizes[n - 2] /= r;
  sizes[n - 1] /= r;
  return MetaInFormatOf(self, sizes);
}
Tensor ChannelShuffle(const Tensor& self, int64_t groups) {
  Know(self.dim() >= 3 && groups > 0 && self.size(1) % groups == 0 && self.numel() > 0);
  return MetaInFormatOf(self, self.sizes());
}

// Pads images [C, H, W] or [N, C, H, W].
Tensor ReflectionPad(const Tensor& self, IntArrayRef padding) {
  const int64_t dims = self.dim();
  Know((dims == 3 || dims == 4) && padding.size() == 4 && self.numel() > 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  for (int64_t k = 0; k < 2; ++k) {  // the last dimension first
    int64_t& size = sizes[dims - 1 - k];
    Know(padding[2 * k] < size && padding[2 * k + 1] < size);
    size += padding[2 * k] + padding[2 * k + 1];
    Know(size > 0);
  }
  return MetaInFormatOf(self, sizes);
}
Tensor PadBackward(const Tensor& grad, const Tensor& self, IntArrayRef padding) {
  Know(self.dim() >= 3 && grad.dim() == self.dim() && padding.size() == 4);
  Know(grad.scalar_type() == self.scalar_type());
  for (int64_t k = 0; k < self.dim(); ++k) {
    const int64_t added = k < 2 ? padding[2 * k] + padding[2 * k + 1] : 0;
    Know(grad.size(-1 - k) == self.size(-1 - k) + added);
  }
  return MetaInFormatOf(self, self.sizes());
}

Tensor Searched(const Tensor& self, const Tensor& boundaries, bool int32, bool right) {
  Know(boundaries.dim() == 1);
  return MetaOfSizes(self.sizes(), int32 ? at::kInt : at::kLong);
}
std::tuple<Tensor, Tensor> ExtremesSoFar(const Tensor& self, int64_t dim) {
  Know(!self.is_complex());
  at::maybe_wrap_dim(dim, self.dim());
  return {MetaContiguousLike(self), MetaOfSizes(self.sizes(), at::kLong)};
}
Tensor LogSumsSoFar(const Tensor& self, int64_t dim) {
  Know(self.is_floating_point());
  at::maybe_wrap_dim(dim, self.dim());
  return MetaContiguousLike(self);
}

// --- ops that write an argument and give it back ---

using Generator = std::optional<at::Generator>;

// An op that fills its argument from a distribution with these parameters.
template <typename... Numbers>
Tensor& DrawsFloats(Tensor& self, Numbers..., Generator) {
  Know(self.is_floating_point());
  return self;
}
Tensor& DrawsFromTo(Tensor& self, int64_t from, std::optional<int64_t> to, Generator) {
  Know(!self.is_complex() && (!to.has_value() || *to > from));
  return self;
}
Tensor& DrawsTo(Tensor& self, int64_t to, Generator) {
  Know(!self.is_complex() && to > 0);
  return self;
}

void GivesFirst(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size() - 1);
}
void GivesLast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t before = op.schema().arguments().size() - 1;
  stack->erase(stack->end() - static_cast<int64_t>(before) - 1, stack->end() - 1);
}

template <c10::KernelFunction::BoxedKernelFunction* kFunction>
c10::KernelFunction Boxed() {
  return c10::KernelFunction::makeFromBoxedFunction<kFunction>();
}

constexpr MetaKernelRow kShapeMetaKernels[] = {
    {"aten::bernoulli_.float", &Boxed<&GivesFirst>},
    {"aten::bucketize.Tensor", &MetaKernel<&Searched>},
    {"aten::cauchy_", &MetaKernel<&DrawsFloats<double, double>>},
    {"aten::channel_shuffle", &MetaKernel<&ChannelShuffle>},
    {"aten::complex", &MetaKernel<&Complex>},
    {"aten::conj_physical.out", &Boxed<&GivesLast>},
    {"aten::cummax", &MetaKernel<&ExtremesSoFar>},
    {"aten::cummin", &MetaKernel<&ExtremesSoFar>},
    {"aten::exponential_", &MetaKernel<&DrawsFloats<double>>},
    {"aten::flip", &MetaKernel<&Flip>},
    {"aten::geometric_", &MetaKernel<&DrawsFloats<double>>},
    {"aten::index_fill_.int_Scalar", &MetaKernel<&IndexFill>},
    {"aten::index_fill_.int_Tensor", &MetaKernel<&IndexFillTensor>},
    {"aten::index_select", &MetaKernel<&IndexSelect>},
    {"aten::log_normal_", &MetaKernel<&DrawsFloats<double, double>>},
    {"aten::logcumsumexp", &MetaKernel<&LogSumsSoFar>},
    {"aten::masked_fill_.Scalar", &MetaKernel<&MaskedFill>},
    {"aten::masked_fill_.Tensor", &MetaKernel<&MaskedFillTensor>},
    {"aten::masked_scatter_", &MetaKernel<&MaskedScatter>},
    {"aten::normal_", &MetaKernel<&DrawsFloats<double, double>>},
    {"aten::pixel_shuffle", &MetaKernel<&PixelShuffle>},
    {"aten::pixel_unshuffle", &MetaKernel<&PixelUnshuffle>},
    {"aten::polar", &MetaKernel<&Complex>},
    {"aten::random_.from", &MetaKernel<&DrawsFromTo>},
    {"aten::random_.to", &MetaKernel<&DrawsTo>},
    {"aten::reflection_pad2d", &MetaKernel<&ReflectionPad>},
    {"aten::reflection_pad2d_backward", &MetaKernel<&PadBackward>},
    {"aten::repeat", &MetaKernel<&Repeat>},
    {"aten::replication_pad2d_backward", &MetaKernel<&PadBackward>},
    {"aten::roll", &MetaKernel<&Roll>},
    {"aten::take", &MetaKernel<&Take>},
    {"aten::unfold_backward", &MetaKernel<&UnfoldBackward>},
    {"aten::uniform_", &MetaKernel<&DrawsFloats<double, double>>},
    {"aten::where.self_out", &Boxed<&GivesLast>},
    {"aten::zero_", &Boxed<&GivesFirst>},
};
static_assert(IsSortedAndUnique(kShapeMetaKernels, &MetaKernelRow::op));

}  // namespace

absl::Span<const MetaKernelRow> ShapeMetaKernels() { return kShapeMetaKernels; }

}  // namespace spmd::trace
