// SPDX-License-Identifier: Apache-2.0
// PyTorch's own C++ kernels over which a Python function is registered.
#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

namespace {

template <typename Op, typename Op::schema* kFunction>
std::pair<std::string, c10::KernelFunction> Hidden() {
  const std::string overload = Op::overload_name;
  return {std::string(Op::name) + (overload.empty() ? "" : ".") + overload,
          MetaKernel<kFunction>()};
}

}  // namespace

std::vector<std::pair<std::string, c10::KernelFunction>> HiddenMetaKernels() {
  return {
#define SPMD_META_KERNEL(op, function) \
  Hidden<at::_ops::op, static_cast<at::_ops::op::schema*>(&at::meta::function)>(),
#include "csrc/trace/shape/meta_kernels.inc"
#undef SPMD_META_KERNEL
  };
}

}  // namespace spmd::trace
