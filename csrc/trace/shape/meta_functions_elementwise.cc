// SPDX-License-Identifier: Apache-2.0
// Element-wise ops and losses. If the CPU's kernel uses TensorIterator, so does the function here.
#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

at::Tensor MetaInOrderOf(const at::Tensor& t, std::optional<at::ScalarType> dtype) {
  const auto strides = t.is_non_overlapping_and_dense()
                           ? t.strides().vec()
                           : at::infer_dense_strides(t.sizes(), t.strides());
  return compat::EmptyOnMeta(t.sizes(), strides, dtype.value_or(t.scalar_type()));
}

namespace {

using at::Scalar;
using at::Tensor;
using std::optional;

// The result of TensorIterator for operands of any types.
Tensor Iterated(std::initializer_list<Tensor> operands, at::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).allow_cpu_scalars(true);
  config.declare_static_dtype_and_device(dtype, at::kMeta).add_owned_output(Tensor());
  for (const Tensor& t : operands) config.add_owned_const_input(t);
  return config.build().output();
}

Tensor Promoted(const Tensor& a, const Tensor& b) {
  return Iterated({a, b}, at::result_type(a, b));
}
bool SameTypeAndSizes(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

Tensor OfFloats(const Tensor& self) {
  Know(self.is_floating_point());
  return Iterated({self}, self.scalar_type());
}
Tensor Abs(const Tensor& self) {
  Know(self.scalar_type() != at::kBool);
  return Iterated({self}, c10::toRealValueType(self.scalar_type()));
}
Tensor Relu(const Tensor& self) {
  Know(!self.is_complex() && self.scalar_type() != at::kBool);
  return Iterated({self}, self.scalar_type());
}
Tensor Gelu(const Tensor& self, c10::string_view approximate) {
  Know(approximate == "none" || approximate == "tanh");
  return at::meta::gelu(self, approximate);
}
Tensor GeluBackward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  Know(approximate == "none" || approximate == "tanh");
  return at::meta::gelu_backward(grad, self, approximate);
}
Tensor Hardtanh(const Tensor& self, const Scalar&, const Scalar&) { return OfFloats(self); }
Tensor HardtanhBackward(const Tensor& grad, const Tensor& self, const Scalar&, const Scalar&) {
  Know(SameTypeAndSizes(grad, self));
  return Promoted(grad, self);
}
Tensor HardswishBackward(const Tensor& grad, const Tensor& self) {
  Know(SameTypeAndSizes(grad, self));
  return Promoted(grad, self);
}
Tensor NanToNum(const Tensor& self, optional<double>, optional<double>, optional<double>) {
  return MetaInOrderOf(self);
}
Tensor IsNan(const Tensor& self) { return at::meta::ne(self, self); }
Tensor LogicalNot(const Tensor& self) { return Iterated({self}, at::kBool); }
Tensor Logical(const Tensor& self, const Tensor& other) {
  return Iterated({self, other}, at::kBool);
}
// The CPU's kernel stores the angles of complex numbers row by row.
Tensor Angle(const Tensor& self) {
  if (self.is_complex()) return MetaOfSizes(self.sizes(), c10::toRealValueType(self.scalar_type()));
  return OfFloats(self);
}
Tensor Logit(const Tensor& self, optional<double>) { return OfFloats(self); }
Tensor Where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  Know(condition.scalar_type() == at::kBool);
  return Iterated({condition, self, other}, at::result_type(self, other));
}
Tensor FloorDivide(const Tensor& self, const Tensor& other) {
  return at::meta::div(self, other, "floor");
}
Tensor Rsub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return at::meta::sub(other, self, alpha);
}

std::tuple<Tensor, Tensor> LogSigmoid(const Tensor& self) {
  Know(self.is_floating_point());
  return {MetaContiguousLike(self), MetaContiguousLike(self)};
}
Tensor LogSigmoidBackward(const Tensor& grad, const Tensor& self, const Tensor& buffer) {
  Know(SameTypeAndSizes(grad, self));
  return MetaInOrderOf(grad);
}
Tensor Prelu(const Tensor& self, const Tensor& weight) {
  Know(self.scalar_type() == weight.scalar_type());
  return Promoted(self, weight);
}
std::tuple<Tensor, Tensor> PreluBackward(const Tensor& grad, const Tensor& self,
                                         const Tensor& weight) {
  Know(self.scalar_type() == weight.scalar_type() && self.sizes() == grad.sizes());
  const Tensor result = Iterated({self, weight, grad}, self.scalar_type());
  return {result, MetaInOrderOf(result)};
}
Tensor GluBackward(const Tensor& grad, const Tensor& self, int64_t) {
  Know(grad.scalar_type() == self.scalar_type() && grad.dim() == self.dim());
  Know(2 * grad.numel() == self.numel());
  return MetaContiguousLike(self);
}
Tensor DropoutBackward(const Tensor& grad, const Tensor& mask, double) {
  return at::meta::mul(grad, mask);
}

// --- losses ---

Tensor Reduced(const Tensor& each, int64_t reduction) {
  return reduction == at::Reduction::None ? each : MetaOfSizes({}, each.scalar_type());
}
Tensor HuberLoss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  Know(delta > 0);
  return Reduced(Promoted(self, target), reduction);
}
Tensor MseLossBackward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t) {
  Know(SameTypeAndSizes(self, target) && grad.scalar_type() == self.scalar_type());
  return MetaContiguousLike(self);
}
Tensor SmoothLossBackward(const Tensor& grad, const Tensor& self, const Tensor& target,
                          int64_t reduction, double) {
  return MseLossBackward(grad, self, target, reduction);
}
Tensor BinaryCrossEntropy(const Tensor& self, const Tensor& target, const optional<Tensor>& weight,
                          int64_t reduction) {
  Know(SameTypeAndSizes(self, target) && self.is_floating_point());
  Know(!OrUndefined(weight).defined() || at::is_expandable_to(weight->sizes(), self.sizes()));
  return Reduced(MetaInOrderOf(self), reduction);
}
Tensor BinaryCrossEntropyBackward(const Tensor& grad, const Tensor& self, const Tensor& target,
                                  const optional<Tensor>&, int64_t) {
  Know(SameTypeAndSizes(self, target));
  return MetaInOrderOf(self);
}

bool IsImageAndItsClasses(const Tensor& self, const Tensor& target) {
  return self.dim() == 4 && target.dim() == 3 && target.size(0) == self.size(0) &&
         target.size(1) == self.size(2) && target.size(2) == self.size(3);
}
std::tuple<Tensor, Tensor> NllLoss2d(const Tensor& self, const Tensor& target,
                                     const optional<Tensor>&, int64_t reduction, int64_t) {
  Know(IsImageAndItsClasses(self, target) && target.scalar_type() == at::kLong);
  const at::ScalarType dtype = self.scalar_type();
  return {Reduced(MetaOfSizes(target.sizes(), dtype), reduction), MetaOfSizes({}, dtype)};
}
Tensor NllLoss2dBackward(const Tensor& grad, const Tensor& self, const Tensor& target,
                         const optional<Tensor>&, int64_t, int64_t, const Tensor&) {
  Know(IsImageAndItsClasses(self, target) && self.is_contiguous());
  return MetaContiguousLike(self);
}

constexpr MetaKernelRow kElementwiseMetaKernels[] = {
    {"aten::_prelu_kernel", &MetaKernel<&Prelu>},
    {"aten::_prelu_kernel_backward", &MetaKernel<&PreluBackward>},
    {"aten::abs", &MetaKernel<&Abs>},
    {"aten::angle", &MetaKernel<&Angle>},
    {"aten::binary_cross_entropy", &MetaKernel<&BinaryCrossEntropy>},
    {"aten::binary_cross_entropy_backward", &MetaKernel<&BinaryCrossEntropyBackward>},
    {"aten::floor_divide", &MetaKernel<&FloorDivide>},
    {"aten::gelu", &MetaKernel<&Gelu>},
    {"aten::gelu_backward", &MetaKernel<&GeluBackward>},
    {"aten::glu_backward", &MetaKernel<&GluBackward>},
    {"aten::hardswish", &MetaKernel<&OfFloats>},
    {"aten::hardswish_backward", &MetaKernel<&HardswishBackward>},
    {"aten::hardtanh", &MetaKernel<&Hardtanh>},
    {"aten::hardtanh_backward", &MetaKernel<&HardtanhBackward>},
    {"aten::huber_loss", &MetaKernel<&HuberLoss>},
    {"aten::huber_loss_backward", &MetaKernel<&SmoothLossBackward>},
    {"aten::isnan", &MetaKernel<&IsNan>},
    {"aten::log_sigmoid_backward", &MetaKernel<&LogSigmoidBackward>},
    {"aten::log_sigmoid_forward", &MetaKernel<&LogSigmoid>},
    {"aten::logical_and", &MetaKernel<&Logical>},
    {"aten::logical_not", &MetaKernel<&LogicalNot>},
    {"aten::logical_or", &MetaKernel<&Logical>},
    {"aten::logical_xor", &MetaKernel<&Logical>},
    {"aten::logit", &MetaKernel<&Logit>},
    {"aten::mse_loss_backward", &MetaKernel<&MseLossBackward>},
    {"aten::nan_to_num", &MetaKernel<&NanToNum>},
    {"aten::native_dropout_backward", &MetaKernel<&DropoutBackward>},
    {"aten::nll_loss2d_backward", &MetaKernel<&NllLoss2dBackward>},
    {"aten::nll_loss2d_forward", &MetaKernel<&NllLoss2d>},
    {"aten::relu", &MetaKernel<&Relu>},
    {"aten::rsub.Tensor", &MetaKernel<&Rsub>},
    {"aten::smooth_l1_loss_backward", &MetaKernel<&SmoothLossBackward>},
    {"aten::where.self", &MetaKernel<&Where>},
};
static_assert(IsSortedAndUnique(kElementwiseMetaKernels, &MetaKernelRow::op));

}  // namespace

absl::Span<const MetaKernelRow> ElementwiseMetaKernels() { return kElementwiseMetaKernels; }

}  // namespace spmd::trace
