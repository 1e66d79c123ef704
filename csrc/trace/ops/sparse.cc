// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
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
    "aten::_to_sparse_bsc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_csr",
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

// Ops on compressed tensors that read the CPU's memory. PyTorch composes all others that the CPU
// has for them. (test_sparse_compressed.py compares with PyTorch's list.)
constexpr std::string_view kNotComposedForCompressed[] = {
    "aten::_pin_memory",
    "aten::_sparse_csr_prod.dim_dtype",
    "aten::triangular_solve.X",
};

template <c10::DispatchKey kKey>
void Compose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(kKey), stack);
}

void RefuseSparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_spmd: ", op.operator_name().name,
                              " takes no sparse tensors on '", TheDevice(),
                              "'; call .to_dense() or .cpu() first");
}

bool IsPinnedSparse(const at::Tensor&, std::optional<at::Device>) { return false; }

// --- the same ops on dense tensors ---

// Sparse tensors of dense ones: PyTorch composes them of nonzero and index.
void ToSparse(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Where each row starts among sorted rows: [size + 1].
void StartsOfRows(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor rows = a[0].toTensor();
  const int64_t size = a[1].toInt();
  const bool int32 = a[2].toBool();
  stack->push_back(rows.numel() == 0
                       ? at::zeros({size + 1}, rows.options().dtype(int32 ? at::kInt : at::kLong))
                       : at::searchsorted(rows, at::arange(size + 1, rows.options()), int32));
}

// The coordinates of each value, [dims, n], from where the rows start and the columns.
void RowsOfStarts(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor starts = a[0].toTensor(), columns = a[1].toTensor();
  TORCH_CHECK(starts.dim() == columns.dim(),
              "crow_indices and col_indices are supposed to have the same dimensionality, but got ",
              starts.dim(), " and ", columns.dim(), " dimensional tensors, respectively.");
  const bool int32 = a[2].toBool(), transpose = a[3].toBool();
  const at::TensorOptions options = starts.options().dtype(int32 ? at::kInt : at::kLong);
  const int64_t last = columns.dim() - 1;
  std::vector<at::Tensor> along;
  for (int64_t d = 0; d < last; ++d) {
    std::vector<int64_t> sizes(columns.dim(), 1);
    sizes[d] = columns.size(d);
    along.push_back(at::arange(columns.size(d), options).view(sizes));
  }
  const at::Tensor each = at::arange(columns.size(last), starts.options()).expand(columns.sizes());
  along.push_back(at::searchsorted(starts, each, int32, /*right=*/true).sub(1));
  along.insert(along.end() - (transpose ? 1 : 0), columns.to(options.dtype()));
  for (at::Tensor& dim : along) dim = dim.expand(columns.sizes()).reshape({columns.numel()});
  stack->push_back(at::stack(along));
}

constexpr HandlerRow kSparseHandlers[] = {
    {"aten::_convert_indices_from_coo_to_csr", &StartsOfRows, kReplayable},
    {"aten::_convert_indices_from_coo_to_csr.out", &RunIntoOut},
    {"aten::_convert_indices_from_csr_to_coo", &RowsOfStarts, kReplayable},
    {"aten::_convert_indices_from_csr_to_coo.out", &RunIntoOut},
    {"aten::_to_sparse", &ToSparse},
    {"aten::_to_sparse.sparse_dim", &ToSparse},
    {"aten::_to_sparse_bsc", &ToSparse},
    {"aten::_to_sparse_bsr", &ToSparse},
    {"aten::_to_sparse_csc", &ToSparse},
    {"aten::_to_sparse_csr", &ToSparse},
};
static_assert(IsSortedAndUnique(kSparseHandlers, &HandlerRow::op));

// Registers kernels for one kind of sparse tensors: ours, what PyTorch composes, and the error for
// all other ops.
class Registration {
 public:
  explicit Registration(c10::DispatchKey key)
      // Never destroyed: the dispatcher may outlive static objects of this library.
      : key_(key),
        ours_(*new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__)) {
    ours_.impl("is_pinned", TORCH_FN(IsPinnedSparse));
  }

  torch::Library& ours() { return ours_; }

  template <c10::DispatchKey kOfCpu>
  void AddComposed(const OpInfo& op) {
    if (!op.handle.hasKernelForDispatchKey(kOfCpu) || op.handle.hasKernelForDispatchKey(key_)) {
      return;
    }
    handles_.push_back(c10::Dispatcher::singleton().registerImpl(
        op.handle.operator_name(), key_,
        c10::KernelFunction::makeFromBoxedFunction<&Compose<kOfCpu>>(), std::nullopt, nullptr,
        "torch_spmd"));
  }

  std::vector<c10::RegistrationHandleRAII> Finish() && {
    handles_.push_back(c10::Dispatcher::singleton().registerFallback(
        key_, c10::KernelFunction::makeFromBoxedFunction<&RefuseSparse>(), "torch_spmd"));
    return std::move(handles_);
  }

 private:
  c10::DispatchKey key_;
  torch::Library& ours_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

}  // namespace

absl::Span<const HandlerRow> SparseHandlers() { return kSparseHandlers; }

std::vector<c10::RegistrationHandleRAII> RegisterSparseKernels() {
  Registration coo(c10::DispatchKey::SparsePrivateUse1);
  AddSparseArithmetic(coo.ours());
  AddSparseProducts(coo.ours());
  for (const std::string_view name : kComposedForCoo) {
    // Another version of PyTorch may lack some.
    const OpInfo* const op = FindOp(std::string(name));
    if (op != nullptr) coo.AddComposed<c10::DispatchKey::SparseCPU>(*op);
  }
  Registration compressed(c10::DispatchKey::SparseCsrPrivateUse1);
  AddCompressed(compressed.ours());
  AddCompressedProducts(compressed.ours());
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle.has_value() ||
        absl::c_linear_search(kNotComposedForCompressed, c10::toString(name)))
      continue;
    compressed.AddComposed<c10::DispatchKey::SparseCsrCPU>(OpInfoFor(*handle));
  }
  std::vector<c10::RegistrationHandleRAII> handles = std::move(coo).Finish();
  for (c10::RegistrationHandleRAII& handle : std::move(compressed).Finish()) {
    handles.push_back(std::move(handle));
  }
  return handles;
}

}  // namespace spmd::trace
