// SPDX-License-Identifier: Apache-2.0
// Autocast uses CUDA's op lists. The default lower precision is bfloat16.
#include "csrc/trace/op/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "csrc/trace/device/device_type.h"

namespace at::autocast {
namespace {

Tensor BinaryCrossEntropyBanned(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
      "autocast. Many models use a sigmoid layer right before the binary cross entropy "
      "layer. In this case, combine the two layers using "
      "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define SPMD_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(SPMD_LOWER)
#undef SPMD_LOWER
#define SPMD_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(SPMD_FP32)
#undef SPMD_FP32
#define SPMD_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(SPMD_SET_DTYPE)
#undef SPMD_SET_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define SPMD_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(SPMD_PROMOTE)
#undef SPMD_PROMOTE
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), TORCH_FN(BinaryCrossEntropyBanned));
}

}  // namespace
}  // namespace at::autocast

namespace spmd::trace {

// The lists are registered when the library is loaded; this function keeps the linker from dropping
// them.
void RegisterAutocast() { at::autocast::set_autocast_dtype(kDeviceType, at::kBFloat16); }

}  // namespace spmd::trace
