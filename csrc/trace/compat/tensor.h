// SPDX-License-Identifier: Apache-2.0
// Parts of tensors, and tensors that the dispatcher does not make (see csrc/trace/compat/keys.h).
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <utility>

namespace spmd::compat {

// A tensor of an implementation of ours. Instead: none, as backends need it. Without: no device.
template <typename Impl, typename... Args>
at::Tensor NewTensor(Args&&... args) {
  return at::detail::make_tensor_base<Impl>(std::forward<Args>(args)...);
}

// Tensors without elements or values, which no mode sees. Instead: at::empty and at::empty_strided,
// which are some times slower. Without: shapes are inferred more slowly.
inline at::Tensor EmptyOnMeta(at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}
inline at::Tensor EmptyOnCpu(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_cpu(sizes, at::device(at::kCPU).dtype(dtype));
}

// Whether a view of `t` has these sizes. Instead: Tensor::view, which throws. Without: reshapes
// that copy are two ops.
inline bool HasView(const at::Tensor& t, at::IntArrayRef sizes) {
  return at::detail::computeStride(t.sizes(), t.strides(), at::DimVector(sizes)).has_value();
}

// The tensor of which it is a view. Instead: none in C++. Without: marks of views of parameters.
inline const at::TensorBase& BaseOf(const at::Tensor& view) { return view._base(); }

// Values that are conjugate or negative only when they are read. Instead: Tensor::conj, which is an
// op. Without: views of such tensors raise.
inline void SetConj(const at::Tensor& t, bool conj) { t._set_conj(conj); }
inline void SetNeg(const at::Tensor& t, bool neg) { t._set_neg(neg); }

// The tangent of forward-mode differentiation. Instead: at::_unpack_dual, which makes a view.
// Without: jvp and torch.func.jvp raise.
inline const at::Tensor& TangentOf(const at::Tensor& t) { return t._fw_grad(/*level=*/0); }
inline void SetTangent(const at::Tensor& t, const at::Tensor& tangent) {
  t._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}

}  // namespace spmd::compat
