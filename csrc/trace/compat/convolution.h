// SPDX-License-Identifier: Apache-2.0
// The strides of convolutions (see csrc/trace/compat/keys.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>

namespace spmd::compat {

// The memory format of a convolution's result. Instead: none. Without: its strides may differ from
// the CPU's.
inline at::MemoryFormat FormatOfConvolution(const at::Tensor& input, const at::Tensor& weight,
                                            at::native::ConvBackend backend) {
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

}  // namespace spmd::compat
