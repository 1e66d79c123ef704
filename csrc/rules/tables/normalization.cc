// SPDX-License-Identifier: Apache-2.0
// Layer, group and batch normalization.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/rules/families.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/reduced_dims.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// The dimensions of every tensor are aligned at the right with those of `reference`, and run over
// its factors where the sizes agree.
OpFactors AlignedFactors(const OpCall& call, const TensorType& reference, OpFactors f) {
  auto factors_of = [&](const TensorType* type) {
    TensorFactors tensor(type == nullptr ? 0 : type->rank());
    for (size_t i = 0; i < tensor.size(); ++i) {
      const int d = reference.rank() - static_cast<int>(tensor.size() - i);
      if (d >= 0 && type->dims[i] == reference.dims[d]) tensor[i].push_back(d);
    }
    return tensor;
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(&type));
  return f;
}

// Rows pass; the dimensions of normalized_shape are whole. The gradients of weight and bias lack
// the rows, over which they are sums.
absl::StatusOr<OpFactors> RowNormFactors(const OpCall& call) {
  const TensorType& x = call.operand(0);
  const int rows = x.rank() - static_cast<int>(call.attrs().GetInts("normalized_shape").size());
  OpFactors f;
  for (int d = 0; d < x.rank(); ++d) f.factors.push_back({.size = x.dims[d], .whole = d >= rows});
  return AlignedFactors(call, x, std::move(f));
}

// The slices along "dim" pass, each of which has one norm; the other dimensions are whole.
absl::StatusOr<OpFactors> WeightNormFactors(const OpCall& call) {
  const TensorType& weight = call.operand(0);
  const int64_t dim = call.Dim("dim", weight.rank());
  OpFactors f;
  for (int d = 0; d < weight.rank(); ++d) {
    f.factors.push_back({.size = weight.dims[d], .whole = d != dim});
  }
  return AlignedFactors(call, weight, std::move(f));
}

// The normalized value, and per row a mean and a reciprocal deviation.
absl::StatusOr<std::vector<TensorType>> LayerNormTypes(const OpCall& call) {
  const TensorType& x = call.operand(0);
  const size_t normalized = call.attrs().GetInts("normalized_shape").size();
  if (normalized > x.dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.op, ": normalized_shape has more dimensions than ", x.ToString()));
  }
  TensorType row = x;
  std::fill(row.dims.end() - normalized, row.dims.end(), 1);
  return std::vector<TensorType>{x, row, row};
}

// The batch and the groups pass; the channels of a group and all positions are whole.
absl::StatusOr<OpFactors> GroupNormFactors(const OpCall& call) {
  const TensorType& x = call.operand(0);
  const int64_t groups = call.attrs().GetInt("group");
  if (x.rank() < 2 || groups <= 0 || x.dims[1] % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.ToString(), ": the channels do not split into groups"));
  }
  OpFactors f;
  f.factors = {{.size = x.dims[0]}, {.size = groups}, {.size = x.dims[1] / groups, .whole = true}};
  TensorFactors image = {{0}, {1, 2}};
  for (int d = 2; d < x.rank(); ++d) {
    image.push_back({static_cast<int>(f.factors.size())});
    f.factors.push_back({.size = x.dims[d], .whole = true});
  }
  // Statistics are [n, groups]. An input [n, channels] of the same rank has other sizes, or one
  // channel per group, where both have the same factors.
  auto factors_of = [&](const TensorType* type) -> TensorFactors {
    if (type == nullptr) return {};
    if (type->dims == x.dims) return image;
    if (type->rank() == 2) return {{0}, {1}};
    if (type->rank() == 1 && type->dims[0] == x.dims[1]) return {{1, 2}};  // a vector of channels
    return TensorFactors(type->rank());  // a gradient that the output mask leaves out
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(&type));
  return f;
}

bool IsNormalizedCut(const OpFactors& f, const CutFactors& cut, const DimFactors& dim) {
  return std::any_of(dim.begin(), dim.end(), [&](int factor) { return cut[factor]; });
}

// Statistics are result 1 in the forward op, operand 2 in the backward op.
template <bool Backward>
Attributes GroupNormLocal(const OpCall& call, const OpFactors& f, const CutFactors& cut) {
  Attributes local = call.attrs();
  const TensorRef statistics = Backward ? Operand(2) : Result(1);
  const TensorFactors& groups = Backward ? f.operands[2] : f.results[1];
  if (IsNormalizedCut(f, cut, f.operands[0][0])) local.Set("N", Expr::Size(Operand(0), 0));
  if (IsNormalizedCut(f, cut, f.operands[0][1])) local.Set("C", Expr::Size(Operand(0), 1));
  if (IsNormalizedCut(f, cut, groups[1])) local.Set("group", Expr::Size(statistics, 1));
  return local;
}

// Channels pass. All other dimensions pass with running statistics, and are whole with those of the
// batch.
absl::StatusOr<OpFactors> BatchNormFactors(const OpCall& call, bool of_batch) {
  const TensorType& x = call.operand(0);
  if (x.rank() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": expected [n, c, …]"));
  }
  OpFactors f;
  TensorFactors image;
  for (int d = 0; d < x.rank(); ++d) {
    f.factors.push_back({.size = x.dims[d], .whole = of_batch && d != 1});
    image.push_back({d});
  }
  auto factors_of = [&](const TensorType* type) -> TensorFactors {
    if (type == nullptr) return {};
    if (type->rank() == x.rank()) return image;
    if (type->rank() == 1 && type->dims[0] == x.dims[1]) return {{1}};
    return TensorFactors(type->rank());  // empty statistics, or a gradient that is not wanted
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(&type));
  return f;
}

// In evaluation the functional op copies the running statistics, which are not sums over the batch.
absl::StatusOr<OpFactors> OfBatch(const OpCall& call) { return BatchNormFactors(call, true); }
absl::StatusOr<OpFactors> OfBatchInTraining(const OpCall& call) {
  return BatchNormFactors(
      call, call.attrs().GetBoolOr("train", call.attrs().GetBoolOr("training", true)));
}

// Sums of images and vectors of channels over all dimensions but the channels.
absl::StatusOr<OpFactors> ChannelSumFactors(const OpCall& call) {
  return BatchNormFactors(call, /*of_batch=*/false);
}

// Every result has the type of the mean, which is the last operand.
template <int Results>
absl::StatusOr<std::vector<TensorType>> LikeTheMean(const OpCall& call) {
  return std::vector<TensorType>(Results, *call.operands.back());
}

absl::StatusOr<std::vector<TensorType>> ChannelMomentTypes(const OpCall& call) {
  return std::vector<TensorType>(2, {DType::kF64, {call.operand(0).dims[1]}});
}

// Some kernels read an operand as if it were contiguous (in eager mode the statistics of rows
// always are). Batch normalization has another formula for operands that are not: one computes
// infinity minus infinity, the other infinity times a difference.
constexpr Row Contiguous(const Row& row) { return row.With(&OpFacts::needs_contiguous, true); }
constexpr Row BatchNorm(absl::string_view op, FactorsFn factors) {
  return Contiguous(Computed(op, factors).Decomposes(DecomposeBatchNorm));
}

constexpr auto kNormalizationRows = CannotFail(
    Rows(BatchNorm("aten::_native_batch_norm_legit.no_stats", OfBatch),
         BatchNorm("aten::_native_batch_norm_legit_functional", OfBatch),
         Contiguous(Computed("aten::_weight_norm_interface", WeightNormFactors)
                        .Decomposes(DecomposeWeightNorm)),
         Contiguous(Computed("aten::_weight_norm_interface_backward", WeightNormFactors)
                        .Each({0})
                        .Decomposes(DecomposeWeightNormBackward)),
         BatchNorm("aten::native_batch_norm", OfBatchInTraining),
         Contiguous(Computed("aten::native_batch_norm_backward", OfBatchInTraining)
                        .Each({0})
                        .Decomposes(DecomposeBatchNormBackward)),
         Contiguous(Computed("aten::native_group_norm", GroupNormFactors)
                        .Local(GroupNormLocal<false>)
                        .Decomposes(DecomposeGroupNorm)),
         Contiguous(Computed("aten::native_group_norm_backward", GroupNormFactors)
                        .Each({0})
                        .Local(GroupNormLocal<true>)
                        .Decomposes(DecomposeGroupNormBackward)),
         Computed("aten::native_layer_norm", RowNormFactors)
             .Types(LayerNormTypes)
             .With(&OpFacts::dims, DimsUse::kForEach)
             .Decomposes(DecomposeLayerNorm),
         Contiguous(Computed("aten::native_layer_norm_backward", RowNormFactors)
                        .Each({0})
                        .With(&OpFacts::dims, DimsUse::kForEach)
                        .Decomposes(DecomposeLayerNormBackward)),
         Computed("spmd::channel_moments", ChannelSumFactors).Types(ChannelMomentTypes),
         Computed("spmd::channel_products", ChannelSumFactors).Each({0}).Types(LikeTheMean<2>),
         Computed("spmd::channel_squares", ChannelSumFactors).Types(LikeTheMean<1>)));
static_assert(AreRowsOf(Family::kNormalization, kNormalizationRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> NormalizationRows() { return kNormalizationRows; }

}  // namespace spmd::rules
