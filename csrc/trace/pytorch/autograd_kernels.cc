// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/autograd_kernels.h"

#include <ATen/InferSize.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_embedding_bag_ops.h>
#include <ATen/ops/_reshape_copy.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/reshape_compositeimplicitautograd_dispatch.h>
#include <c10/core/AutogradState.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/ops/equal_bags.h"
#include "csrc/trace/ops/strided_windows.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/gradients_on_device.h"
#include "csrc/trace/pytorch/lanes_product.h"
#include "csrc/trace/recorder/region.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

namespace {

// PyTorch's autograd kernel of linear has no forward-mode formula, and its backward handles real
// and dense matrices only. If an operand has a tangent, is complex or sparse, or if the weight is a
// vector, this kernel computes the product that linear stands for.
at::Tensor Linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  const bool has_bias = bias.has_value() && bias->defined();
  const bool dense = !keys.has(c10::DispatchKey::Sparse) && !keys.has(c10::DispatchKey::SparseCsr);
  if (dense && weight.dim() == 2 && !weight.is_complex() && !HasTangent(input) &&
      !HasTangent(weight) && !(has_bias && HasTangent(*bias))) {
    // Most keys of autograd decompose linear. Nested tensors keep it whole, as the device does.
    constexpr auto kWhole = c10::DispatchKey::AutogradNestedTensor;
    return at::_ops::linear::redispatch((keys & c10::after_autograd_keyset).add(kWhole), input,
                                        weight, bias);
  }
  const at::Tensor product = at::matmul(input, weight.t());
  return has_bias ? at::add(product, *bias) : product;
}

// A reshape that no view can express is a copy in one op, which is recorded and differentiated
// once. PyTorch's kernel makes two ops of it, a clone and an _unsafe_view.
at::Tensor Reshape(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef size) {
  const auto plain = c10::asIntArrayRefSlowOpt(size);
  if (plain.has_value() && Buffer::IsOurs(self) && !self.is_contiguous() && IsNext(keys)) {
    const at::DimVector shape = at::infer_size_dv(*plain, self.numel());
    if (!compat::HasView(self, shape)) return at::_reshape_copy(self, shape);
  }
  return at::compositeimplicitautograd::reshape_symint(self, size);
}

// One product of a sparse matrix and all matrices of a batch: a sparse one cannot be repeated for
// each. nullopt for other operands.
std::optional<at::Tensor> SparseProduct(const at::Tensor& a, const at::Tensor& b) {
  const auto is_sparse = [](const at::Tensor& t) {
    return (t.is_sparse() || at::sparse_csr::is_sparse_compressed(t)) && t.dim() == 2;
  };
  const auto is_batch = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && t.dim() == 3;
  };
  if (is_sparse(a) && is_batch(b)) {
    const at::Tensor columns = b.transpose(0, 1).flatten(1);
    return at::mm(a, columns).unflatten(1, {b.size(0), b.size(2)}).transpose(0, 1);
  }
  if (is_batch(a) && is_sparse(b)) {
    const at::Tensor rows = a.flatten(0, 1);
    return at::mm(b.t(), rows.t()).t().unflatten(0, {a.size(0), a.size(1)});
  }
  return std::nullopt;
}

// PyTorch's kernel reshapes operands until one product of matrices is left. Three cases need fewer
// ops here. For batches of equally many matrices, it makes six, five of which change nothing. Of a
// matrix that requires a gradient and a batch, it merges the batch with the rows of the transposed
// result; linear, which the device keeps whole, does not merge dimensions. In a manual region the
// batch is lanes, of which a device has one: then the product for each lane is the shortest, and
// the gradient of the matrix, a sum over lanes, is a partial sum without a copy for each. All give
// the same strides as PyTorch's.
at::Tensor MatrixProduct(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b) {
  if (std::optional<at::Tensor> product = SparseProduct(a, b)) return *std::move(product);
  const bool dense = a.layout() == at::kStrided && b.layout() == at::kStrided;
  const bool plain = dense && Buffer::IsOurs(a) && Buffer::IsOurs(b) && IsNext(keys) &&
                     a.scalar_type() == b.scalar_type() && a.dim() >= 2 && b.dim() >= 3 &&
                     b.numel() > 0 && a.size(-1) == b.size(-2);
  if (plain && a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0)) return at::bmm(a, b);
  if (plain && regions_entered > 0 && a.dim() == 2 && b.dim() == 3 && !HasTangent(a) &&
      !HasTangent(b)) {
    return LanesProduct(a, b);
  }
  if (plain && a.dim() == 2 && a.numel() > 0 && a.requires_grad() && !a.is_complex() &&
      c10::AutogradState::get_tls_state().get_grad_mode() && !HasTangent(a) && !HasTangent(b)) {
    return at::linear(b.transpose(-2, -1), a).transpose(-2, -1).contiguous();
  }
  return at::compositeimplicitautograd::matmul(a, b);
}

at::Tensor AsStrided(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef size,
                     c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  const auto sizes = c10::asIntArrayRefSlowOpt(size), strides = c10::asIntArrayRefSlowOpt(stride);
  const bool known = sizes && strides && (!offset || !offset->is_symbolic());
  if (known && IsNextOfTracked(keys)) {
    const auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
    if (std::optional<at::Tensor> slices = AsSlices(self, *sizes, *strides, start)) {
      return *std::move(slices);
    }
    if (std::optional<at::Tensor> windows = AsWindows(self, *sizes, *strides, start)) {
      return *std::move(windows);
    }
  }
  return at::_ops::as_strided::redispatch(ToPyTorchsKernel(keys), self, size, stride, offset);
}

// Bags of equal size are written in ops whose gradients are sharded as they are.
BagResults EmbeddingBag(c10::DispatchKeySet keys, const at::Tensor& weight,
                        const at::Tensor& indices, const at::Tensor& offsets,
                        bool scale_grad_by_freq, int64_t mode, bool sparse,
                        const std::optional<at::Tensor>& per_sample_weights,
                        bool include_last_offset, int64_t padding_idx) {
  if (IsNext(keys)) {
    std::optional<BagResults> equal =
        EqualBags({weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                   per_sample_weights.value_or(at::Tensor()), include_last_offset, padding_idx});
    if (equal.has_value()) return *std::move(equal);
  }
  return at::_ops::_embedding_bag::redispatch(ToPyTorchsKernel(keys), weight, indices, offsets,
                                              scale_grad_by_freq, mode, sparse, per_sample_weights,
                                              include_last_offset, padding_idx);
}

// The gradient of convolution_backward, expressed by a convolution and its gradients. PyTorch's own
// formula computes the gradient of the weight by a convolution whose kernel is an image, which
// cannot be sharded well.
std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolutionDoubleBackward(
    const std::optional<at::Tensor>& gg_input, const std::optional<at::Tensor>& gg_weight,
    const std::optional<at::Tensor>& gg_bias, const at::Tensor& grad, const at::Tensor& weight,
    const at::Tensor& input, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  const auto given = [](const std::optional<at::Tensor>& t) { return t && t->defined(); };
  const auto convolved = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::convolution(x, w, {}, stride, padding, dilation, transposed, output_padding, groups);
  };
  const auto gradients = [&](const at::Tensor& x, const at::Tensor& w, bool of_input) {
    return at::convolution_backward(grad, x, w, std::nullopt, stride, padding, dilation, transposed,
                                    output_padding, groups, {of_input, !of_input, false});
  };
  at::Tensor gg_out, d_input, d_weight;
  const auto add = [&](const at::Tensor& term) {
    gg_out = gg_out.defined() ? at::add(gg_out, term) : term;
  };
  if (mask[0] && given(gg_input)) add(convolved(*gg_input, weight));
  if (mask[0] && given(gg_weight)) add(convolved(input, *gg_weight));
  if (mask[0] && given(gg_bias)) {
    std::vector<int64_t> per_channel(grad.dim(), 1);
    per_channel[1] = -1;
    add(gg_bias->reshape(per_channel).expand_as(grad));
  }
  if (mask[1] && given(gg_weight)) d_input = std::get<0>(gradients(input, *gg_weight, true));
  if (mask[2] && given(gg_input)) d_weight = std::get<1>(gradients(*gg_input, weight, false));
  return {gg_out, d_input, d_weight};  // undefined means zero
}

}  // namespace

void RegisterAutogradKernels() {
  // Never destroyed: the dispatcher may outlive static objects of this library.
  auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                     c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  library->impl("linear", TORCH_FN(Linear));
  library->impl("reshape", TORCH_FN(Reshape));
  library->impl("matmul", TORCH_FN(MatrixProduct));
  library->impl("as_strided", TORCH_FN(AsStrided));
  library->impl("_embedding_bag", TORCH_FN(EmbeddingBag));
  library->impl("_convolution_double_backward", TORCH_FN(ConvolutionDoubleBackward));
  AddGradientsOnDevice(*library);
}

}  // namespace spmd::trace
