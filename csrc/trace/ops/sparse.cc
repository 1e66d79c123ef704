// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <string_view>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

// Ops that PyTorch composes of ops on indices and values, by one function for the CPU and for CUDA,
// which is registered under both keys. The CPU's is called. (test_sparse.py compares with PyTorch's
// list.)
constexpr std::string_view kComposedForCoo[] = {
    "aten::_coalesced_",
    "aten::_dimI",
    "aten::_dimV",
    "aten::_indices",
    "aten::_nnz",
    "aten::_sparse_broadcast_to",
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_to_dense",
    "aten::_to_sparse",
    "aten::_to_sparse.sparse_dim",
    "aten::_values",
    "aten::abs",
    "aten::abs.out",
    "aten::abs_",
    "aten::any",
    "aten::asin",
    "aten::asin.out",
    "aten::asin_",
    "aten::asinh",
    "aten::asinh.out",
    "aten::asinh_",
    "aten::atan",
    "aten::atan.out",
    "aten::atan_",
    "aten::atanh",
    "aten::atanh.out",
    "aten::atanh_",
    "aten::cat",
    "aten::ceil",
    "aten::ceil.out",
    "aten::ceil_",
    "aten::clone",
    "aten::conj_physical.out",
    "aten::copy_",
    "aten::copy_sparse_to_sparse_",
    "aten::deg2rad",
    "aten::deg2rad.out",
    "aten::deg2rad_",
    "aten::dense_dim",
    "aten::div.Tensor",
    "aten::div.Tensor_mode",
    "aten::div.out",
    "aten::div.out_mode",
    "aten::div_.Tensor",
    "aten::div_.Tensor_mode",
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::erf",
    "aten::erf.out",
    "aten::erf_",
    "aten::erfinv",
    "aten::erfinv.out",
    "aten::erfinv_",
    "aten::expm1",
    "aten::expm1.out",
    "aten::expm1_",
    "aten::floor",
    "aten::floor.out",
    "aten::floor_",
    "aten::floor_divide",
    "aten::floor_divide.out",
    "aten::floor_divide_.Tensor",
    "aten::frac",
    "aten::frac.out",
    "aten::frac_",
    "aten::indices",
    "aten::is_coalesced",
    "aten::isinf",
    "aten::isnan",
    "aten::isneginf",
    "aten::isneginf.out",
    "aten::isposinf",
    "aten::isposinf.out",
    "aten::log1p",
    "aten::log1p.out",
    "aten::log1p_",
    "aten::mm",
    "aten::mm.out",
    "aten::mv",
    "aten::nan_to_num",
    "aten::nan_to_num.out",
    "aten::nan_to_num_",
    "aten::narrow_copy",
    "aten::native_norm",
    "aten::native_norm.ScalarOpt_dim_dtype",
    "aten::neg",
    "aten::neg.out",
    "aten::neg_",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dim_dtype",
    "aten::permute",
    "aten::pow.Tensor_Scalar",
    "aten::pow.Tensor_Scalar_out",
    "aten::rad2deg",
    "aten::rad2deg.out",
    "aten::rad2deg_",
    "aten::relu",
    "aten::relu_",
    "aten::resize_as_sparse_",
    "aten::round",
    "aten::round.out",
    "aten::round_",
    "aten::sgn",
    "aten::sgn.out",
    "aten::sgn_",
    "aten::sign",
    "aten::sign.out",
    "aten::sign_",
    "aten::signbit",
    "aten::signbit.out",
    "aten::sin",
    "aten::sin.out",
    "aten::sin_",
    "aten::sinh",
    "aten::sinh.out",
    "aten::sinh_",
    "aten::sparse_dim",
    "aten::sparse_resize_",
    "aten::sparse_resize_and_clear_",
    "aten::sqrt",
    "aten::sqrt.out",
    "aten::sqrt_",
    "aten::sub.Tensor",
    "aten::sub.out",
    "aten::sub_.Tensor",
    "aten::sum",
    "aten::sum.dim_IntList",
    "aten::tan",
    "aten::tan.out",
    "aten::tan_",
    "aten::tanh",
    "aten::tanh.out",
    "aten::tanh_",
    "aten::threshold_backward",
    "aten::threshold_backward.grad_input",
    "aten::trunc",
    "aten::trunc.out",
    "aten::trunc_",
    "aten::unsqueeze",
    "aten::values",
    "aten::view_as_complex",
    "aten::view_as_real",
    "aten::zero_",
    "aten::zeros.out",
};
static_assert(IsSortedAndUnique(kComposedForCoo));

void ComposeForCoo(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), stack);
}

void RefuseCoo(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_spmd: ", op.operator_name().name,
                              " takes no sparse tensors on '", TheDevice(),
                              "'; call .to_dense() or .cpu() first");
}

bool IsPinnedCoo(const at::Tensor&, std::optional<at::Device>) { return false; }

// Sparse tensors of dense ones: PyTorch composes them of nonzero and index.
void ToSparse(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

constexpr HandlerRow kSparseHandlers[] = {
    {"aten::_to_sparse", &ToSparse},
    {"aten::_to_sparse.sparse_dim", &ToSparse},
};
static_assert(IsSortedAndUnique(kSparseHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> SparseHandlers() { return kSparseHandlers; }

std::vector<c10::RegistrationHandleRAII> RegisterSparseKernels() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  constexpr auto kKey = c10::DispatchKey::SparsePrivateUse1;
  std::vector<c10::RegistrationHandleRAII> handles;
  for (const std::string_view name : kComposedForCoo) {
    // Another version of PyTorch may lack some.
    const OpInfo* const op = FindOp(std::string(name));
    if (op == nullptr || !op->handle.hasKernelForDispatchKey(c10::DispatchKey::SparseCPU)) continue;
    handles.push_back(
        dispatcher.registerImpl(op->handle.operator_name(), kKey,
                                c10::KernelFunction::makeFromBoxedFunction<&ComposeForCoo>(),
                                std::nullopt, nullptr, "torch_spmd"));
  }
  handles.push_back(dispatcher.registerFallback(
      kKey, c10::KernelFunction::makeFromBoxedFunction<&RefuseCoo>(), "torch_spmd"));
  // Never destroyed: the dispatcher may outlive static objects of this library.
  auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  AddSparseArithmetic(*library);
  AddSparseProducts(*library);
  library->impl("is_pinned", TORCH_FN(IsPinnedCoo));
  return handles;
}

}  // namespace spmd::trace
