// SPDX-License-Identifier: Apache-2.0
// Meta kernels in C++ for ops for which PyTorch has one in Python only. They are ordinary functions
// with the op's arguments, on Meta tensors. Results have the strides of the CPU's kernels. The
// functions know the calls that occur in programs and throw for others, about which PyTorch is then
// asked.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

struct MetaKernelRow {
  std::string_view op;
  c10::KernelFunction (*kernel)();
};

template <auto* kFunction>
c10::KernelFunction MetaKernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(
      c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(kFunction)>, kFunction>());
}

// By op, those of meta_kernels.inc.
std::vector<std::pair<std::string, c10::KernelFunction>> HiddenMetaKernels();
absl::Span<const MetaKernelRow> ElementwiseMetaKernels();
absl::Span<const MetaKernelRow> LayerMetaKernels();
absl::Span<const MetaKernelRow> ReductionMetaKernels();
absl::Span<const MetaKernelRow> ShapeMetaKernels();

// --- what the functions are written in ---

// Throws unless `known` holds.
inline void Know(bool known) { TORCH_CHECK(known, "not known here"); }

inline at::Tensor MetaOfSizes(at::IntArrayRef sizes, at::ScalarType dtype,
                              std::optional<at::MemoryFormat> format = std::nullopt) {
  return compat::EmptyOnMeta(sizes, dtype, format);
}
// A dense Meta tensor with the sizes of `t` and its dimensions in the same order in memory.
at::Tensor MetaInOrderOf(const at::Tensor& t, std::optional<at::ScalarType> dtype = std::nullopt);
// Channels last if `t` is, else contiguous.
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
