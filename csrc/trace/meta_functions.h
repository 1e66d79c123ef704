// SPDX-License-Identifier: Apache-2.0
// Meta kernels of our own, for ops that PyTorch has one in Python for and none in C++: ordinary
// functions with the op's arguments, on tensors of Meta. Results lie as those of the CPU's kernels.
// They know the calls that programs make, and throw at others, which PyTorch is then asked about.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h>

#include <string>
#include <vector>

namespace spmd::trace {

struct MetaKernelRow {
  std::string op;
  c10::KernelFunction kernel;
};

template <auto* kFunction>
c10::KernelFunction MetaKernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(
      c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(kFunction)>, kFunction>());
}

std::vector<MetaKernelRow> HiddenMetaKernels();  // meta_kernels.inc
std::vector<MetaKernelRow> ElementwiseMetaKernels();
std::vector<MetaKernelRow> LayerMetaKernels();
std::vector<MetaKernelRow> ReductionMetaKernels();
std::vector<MetaKernelRow> ShapeMetaKernels();

// --- what the functions are written in ---

// Throws where `known` does not hold.
inline void Know(bool known) { TORCH_CHECK(known, "not known here"); }

inline at::Tensor MetaOfSizes(at::IntArrayRef sizes, at::ScalarType dtype,
                              std::optional<at::MemoryFormat> format = std::nullopt) {
  return at::detail::empty_meta(sizes, dtype, format);
}
// Dense, its dimensions in the order of those of `t`.
at::Tensor MetaInOrderOf(const at::Tensor& t, std::optional<at::ScalarType> dtype = std::nullopt);
// Channels last where `t` is, else contiguous.
inline at::Tensor MetaInFormatOf(const at::Tensor& t, at::IntArrayRef sizes) {
  return MetaOfSizes(sizes, t.scalar_type(), t.suggest_memory_format());
}
inline at::Tensor MetaContiguousLike(const at::Tensor& t) {
  return MetaOfSizes(t.sizes(), t.scalar_type());
}
inline at::Tensor OrUndefined(const std::optional<at::Tensor>& t) {
  return t.has_value() ? *t : at::Tensor();
}

}  // namespace spmd::trace
