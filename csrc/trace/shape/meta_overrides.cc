// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/meta_overrides.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;
using ShapesFn = bool (*)(const Args&, Inference&);

TensorMeta ContiguousLike(const at::Tensor& t) {
  return TensorMeta::Contiguous(t.scalar_type(), t.sizes());
}

void Add(Inference& result, TensorMeta meta) {
  result.tensors.push_back(std::move(meta));
  result.counts.push_back(1);
}

// One result, or list of results, like each of the arguments with these numbers.
template <int... kArguments>
bool Like(const Args& args, Inference& result) {
  for (const int k : {kArguments...}) {
    if (args[k].isTensor()) {
      Add(result, ContiguousLike(args[k].toTensor()));
      continue;
    }
    const std::vector<at::Tensor> list = args[k].toTensorVector();
    for (const at::Tensor& t : list) result.tensors.push_back(ContiguousLike(t));
    result.counts.push_back(static_cast<int>(list.size()));
  }
  return true;
}

// Fake quantization gives values like the first argument. What its kernels check of the numbers is
// checked here.
bool IsQuantizable(const Args& args, size_t first_bound) {
  const int64_t least = args[first_bound].toInt(), greatest = args[first_bound + 1].toInt();
  return args[0].toTensor().is_floating_point() && least <= greatest;
}
bool HasQuantizerOfEach(const Args& args, int tensor) {
  const at::Tensor x = args[tensor].toTensor(), scale = args[tensor + 1].toTensor(),
                   zero_point = args[tensor + 2].toTensor();
  const int64_t axis = args[tensor + 3].toInt();
  return axis >= 0 && axis < x.dim() && scale.dim() == 1 && scale.size(0) == x.size(axis) &&
         zero_point.sizes() == scale.sizes();
}
bool HasOneQuantizer(const Args& args, int tensor) {
  const at::Tensor scale = args[tensor + 1].toTensor(), zero_point = args[tensor + 2].toTensor();
  return scale.dim() == 1 && scale.numel() == 1 && zero_point.sizes() == scale.sizes();
}

// Also one flag for each value.
bool AddQuantized(const Args& args, Inference& result) {
  Add(result, ContiguousLike(args[0].toTensor()));
  Add(result, TensorMeta::Contiguous(at::kBool, args[0].toTensor().sizes()));
  return true;
}
bool QuantizedByNumbers(const Args& args, Inference& result) {
  const int64_t zero_point = args[2].toInt();
  return IsQuantizable(args, 3) && args[3].toInt() <= zero_point && zero_point <= args[4].toInt() &&
         AddQuantized(args, result);
}
bool QuantizedByTensors(const Args& args, Inference& result) {
  return IsQuantizable(args, 4) && args[1].toTensor().numel() == 1 &&
         args[2].toTensor().numel() == 1 && AddQuantized(args, result);
}
bool QuantizedByAxis(const Args& args, Inference& result) {
  return IsQuantizable(args, 4) && HasQuantizerOfEach(args, 0) && AddQuantized(args, result);
}
bool Learned(const Args& args, Inference& result) {
  return IsQuantizable(args, 3) && HasOneQuantizer(args, 0) && Like<0>(args, result);
}
bool LearnedByAxis(const Args& args, Inference& result) {
  return IsQuantizable(args, 4) && HasQuantizerOfEach(args, 0) && Like<0>(args, result);
}
bool LearnedBackward(const Args& args, Inference& result) {
  return IsQuantizable(args, 4) && HasOneQuantizer(args, 1) && Like<1, 2, 3>(args, result);
}
bool LearnedByAxisBackward(const Args& args, Inference& result) {
  return IsQuantizable(args, 5) && HasQuantizerOfEach(args, 1) && Like<1, 2, 3>(args, result);
}

// The results are a matrix and the scales of its reflectors.
bool Geqrf(const Args& args, Inference& result) {
  const at::Tensor self = args[0].toTensor();
  if (self.dim() < 2 || !(self.is_floating_point() || self.is_complex())) return false;
  std::vector<int64_t> tau(self.sizes().begin(), self.sizes().end() - 2);
  tau.push_back(std::min(self.size(-2), self.size(-1)));
  Add(result, ContiguousLike(self));
  Add(result, TensorMeta::Contiguous(self.scalar_type(), tau));
  return true;
}

// The result is like the counts.
bool Binomial(const Args& args, Inference& result) {
  const at::Tensor count = args[0].toTensor(), prob = args[1].toTensor();
  if (!count.is_floating_point() || prob.scalar_type() != count.scalar_type()) return false;
  if (!at::is_expandable_to(prob.sizes(), count.sizes())) return false;
  Add(result, ContiguousLike(count));
  return true;
}

bool Dirichlet(const Args& args, Inference& result) {
  const at::Tensor alpha = args[0].toTensor();
  if (!alpha.is_floating_point() || alpha.dim() == 0) return false;
  Add(result, ContiguousLike(alpha));
  return true;
}

// The result has a dimension for each column of `self`, as long as the number of its bins.
bool Histogram(const Args& args, Inference& result) {
  const at::Tensor self = args[0].toTensor();
  const std::vector<at::Tensor> bins = args[1].toTensorVector();
  const at::ScalarType dtype = self.scalar_type();
  if (self.dim() < 2 || static_cast<int64_t>(bins.size()) != self.size(-1)) return false;
  if (dtype != at::kFloat && dtype != at::kDouble) return false;
  if (args[2].isTensor()) {
    const at::Tensor weight = args[2].toTensor();
    if (weight.scalar_type() != dtype || weight.sizes() != self.sizes().slice(0, self.dim() - 1)) {
      return false;
    }
  }
  std::vector<int64_t> sizes;
  for (const at::Tensor& edges : bins) {
    if (edges.dim() != 1 || edges.numel() == 0 || edges.scalar_type() != dtype) return false;
    sizes.push_back(edges.numel() - 1);
  }
  Add(result, TensorMeta::Contiguous(dtype, sizes));
  return true;
}

// True if the rows or the columns of a matrix (or of a batch) are contiguous and begin at multiples
// of 16 bytes.
bool HasAlignedRows(const at::Tensor& t) {
  const int64_t alignment = 16 / static_cast<int64_t>(t.itemsize()), last = t.dim() - 1;
  for (const int64_t inner : {last - 1, last}) {
    const int64_t outer = inner == last ? last - 1 : last;
    if (t.stride(inner) == 1 && t.stride(outer) >= std::max<int64_t>(1, t.size(inner))) {
      return t.stride(outer) % alignment == 0;
    }
  }
  return false;
}

// Infers the sizes of a product of groups: see csrc/rules/tables/grouped_matmul.h. False if
// PyTorch's kernels refuse the call.
bool GroupedProduct(const at::Tensor& self, const at::Tensor& mat2, const c10::IValue& offsets,
                    at::ScalarType dtype, Inference& result) {
  const int64_t a = self.dim(), b = mat2.dim();
  if (a < 2 || a > 3 || b < 2 || b > 3 || self.scalar_type() != mat2.scalar_type()) return false;
  const bool batches = a == 3 && b == 3;
  if (batches == offsets.isTensor() || self.size(-1) != mat2.size(-2)) return false;
  if (!HasAlignedRows(self) || !HasAlignedRows(mat2)) return false;
  int64_t groups = a == 3 ? self.size(0) : b == 3 ? mat2.size(0) : -1;
  if (batches && mat2.size(0) != groups) return false;
  if (offsets.isTensor()) {
    const at::Tensor ends = offsets.toTensor();
    if (ends.dim() != 1 || ends.scalar_type() != at::kInt) return false;
    if (groups >= 0 && ends.size(0) != groups) return false;
    groups = ends.size(0);
  }
  std::vector<int64_t> sizes = {self.size(-2), mat2.size(-1)};
  if (a == b) sizes.insert(sizes.begin(), groups);
  Add(result, TensorMeta::Contiguous(dtype, sizes));
  return true;
}

bool GroupedMm(const Args& args, Inference& result) {
  const at::Tensor self = args[0].toTensor();
  const at::ScalarType dtype = self.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) return false;
  if (!args[3].isNone() || (!args[4].isNone() && args[4].toScalarType() != dtype)) return false;
  return GroupedProduct(self, args[1].toTensor(), args[2], dtype, result);
}

// There is one scale for each row of `self` and each column of `mat2`; if the contracted dimension
// is divided into groups, one for each of every group.
bool ScaledGroupedMm(const Args& args, Inference& result) {
  const at::Tensor self = args[0].toTensor(), mat2 = args[1].toTensor();
  if (!args[5].isNone() || !args[6].isNone() || self.itemsize() != 1) return false;
  const at::ScalarType dtype = args[7].isNone() ? at::kBFloat16 : args[7].toScalarType();
  if (!GroupedProduct(self, mat2, args[4], dtype, result)) return false;
  const bool contracted = self.dim() == 2 && mat2.dim() == 2;
  const int64_t each = contracted ? args[4].toTensor().size(0) : 1;
  const auto fits = [&](const at::Tensor& scale, const at::Tensor& matrix, int64_t side) {
    const int64_t batch = matrix.dim() == 3 ? matrix.size(0) : each;
    return scale.scalar_type() == at::kFloat && scale.numel() == batch * matrix.size(side);
  };
  return fits(args[2].toTensor(), self, -2) && fits(args[3].toTensor(), mat2, -1);
}

// The norms of half types are f32.
bool WeightNorm(const Args& args, Inference& result) {
  const at::Tensor v = args[0].toTensor(), g = args[1].toTensor();
  if (v.scalar_type() != g.scalar_type() || !at::isFloatingType(v.scalar_type())) return false;
  const int64_t dim = args[2].toInt();
  if (v.dim() == 0 || g.dim() != v.dim() || (dim != 0 && dim != v.dim() - 1)) return false;
  for (int64_t d = 0; d < v.dim(); ++d) {
    if (g.size(d) != (d == dim ? v.size(d) : 1)) return false;
  }
  Add(result, ContiguousLike(v));
  const bool half = at::isReducedFloatingType(g.scalar_type());
  Add(result, TensorMeta::Contiguous(half ? at::kFloat : g.scalar_type(), g.sizes()));
  return true;
}

struct OverriddenRow {
  std::string_view op;
  ShapesFn shapes;
};

constexpr OverriddenRow kMetaOverridesRows[] = {
    {"aten::_dirichlet_grad", Like<0>},
    {"aten::_fake_quantize_learnable_per_channel_affine", LearnedByAxis},
    {"aten::_fake_quantize_learnable_per_channel_affine_backward", LearnedByAxisBackward},
    {"aten::_fake_quantize_learnable_per_tensor_affine", Learned},
    {"aten::_fake_quantize_learnable_per_tensor_affine_backward", LearnedBackward},
    {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", QuantizedByTensors},
    {"aten::_fused_adagrad", Like<0, 1, 2, 3>},
    {"aten::_fused_adagrad.tensor_lr", Like<0, 1, 2>},
    {"aten::_fused_adam.tensor_lr", Like<0, 1, 2, 3, 4>},
    {"aten::_fused_adamw.tensor_lr", Like<0, 1, 2, 3, 4>},
    {"aten::_fused_sgd", Like<0, 1, 2>},
    {"aten::_fused_sgd.tensor_lr", Like<0, 1, 2>},
    {"aten::_grouped_mm", GroupedMm},
    {"aten::_histogramdd_from_bin_tensors", Histogram},
    {"aten::_logcumsumexp", Like<0>},
    {"aten::_sample_dirichlet", Dirichlet},
    {"aten::_scaled_grouped_mm", ScaledGroupedMm},
    {"aten::_standard_gamma", Like<0>},  // PyTorch has a Meta kernel from 2.13 on
    {"aten::_standard_gamma_grad", Like<0>},
    {"aten::_weight_norm_interface", WeightNorm},
    {"aten::binomial", Binomial},
    {"aten::fake_quantize_per_channel_affine_cachemask", QuantizedByAxis},
    {"aten::fake_quantize_per_tensor_affine_cachemask", QuantizedByNumbers},
    {"aten::fractional_max_pool3d_backward", Like<1>},
    {"aten::geqrf", Geqrf},
    {"aten::multi_margin_loss_backward", Like<1>},
    {"aten::multilabel_margin_loss_backward", Like<1>},
};

static_assert(IsSortedAndUnique(kMetaOverridesRows, &OverriddenRow::op));

}  // namespace

bool OwnShapes(const OpInfo& op, const std::vector<c10::IValue>& args, Inference& result) {
  const OverriddenRow* row = std::lower_bound(
      std::begin(kMetaOverridesRows), std::end(kMetaOverridesRows), std::string_view(op.name),
      [](const OverriddenRow& r, std::string_view name) { return r.op < name; });
  return row != std::end(kMetaOverridesRows) && row->op == op.name && row->shapes(args, result);
}

}  // namespace spmd::trace
