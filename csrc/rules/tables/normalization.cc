// SPDX-License-Identifier: Apache-2.0
// Layer, group and batch normalization.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/rules/registry.h"
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

bool IsCut(const OpFactors& f, const CutFactors& cut, const DimFactors& dim) {
  return std::any_of(dim.begin(), dim.end(), [&](int factor) { return cut[factor]; });
}

// Statistics are result 1 in the forward op, operand 2 in the backward op.
Attributes GroupNormLocal(const OpCall& call, const OpFactors& f, const CutFactors& cut) {
  Attributes local = call.attrs();
  const bool backward = absl::EndsWith(call.op, "backward");
  const TensorRef statistics = backward ? Operand(2) : Result(1);
  const TensorFactors& groups = backward ? f.operands[2] : f.results[1];
  if (IsCut(f, cut, f.operands[0][0])) local.Set("N", Expr::Size(Operand(0), 0));
  if (IsCut(f, cut, f.operands[0][1])) local.Set("C", Expr::Size(Operand(0), 1));
  if (IsCut(f, cut, groups[1])) local.Set("group", Expr::Size(statistics, 1));
  return local;
}

bool UsesBatchStatistics(const OpCall& call) {
  // In evaluation the functional op copies the running statistics, which are not sums over the
  // batch.
  if (call.op == "aten::_native_batch_norm_legit_functional") return true;
  if (call.op == "aten::_native_batch_norm_legit.no_stats") return true;
  return call.attrs().GetBoolOr("train", call.attrs().GetBoolOr("training", true));
}

// Channels pass. All other dimensions pass with running statistics, and are whole with those of the
// batch.
absl::StatusOr<OpFactors> BatchNormFactors(const OpCall& call) {
  const TensorType& x = call.operand(0);
  if (x.rank() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": expected [n, c, …]"));
  }
  const bool batch = UsesBatchStatistics(call);
  OpFactors f;
  TensorFactors image;
  for (int d = 0; d < x.rank(); ++d) {
    f.factors.push_back({.size = x.dims[d], .whole = batch && d != 1});
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

// Sums of images and vectors of channels over all dimensions but the channels.
absl::StatusOr<OpFactors> ChannelSumFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(OpFactors f, BatchNormFactors(call));
  for (Factor& factor : f.factors) factor.whole = false;
  return f;
}

// Every result has the type of the mean, which is the last operand.
template <int Results>
absl::StatusOr<std::vector<TensorType>> LikeTheMean(const OpCall& call) {
  return std::vector<TensorType>(Results, *call.operands.back());
}

absl::StatusOr<std::vector<TensorType>> ChannelMomentTypes(const OpCall& call) {
  return std::vector<TensorType>(2, {DType::kF64, {call.operand(0).dims[1]}});
}

}  // namespace

std::vector<Rule> NormalizationRules() {
  // Some kernels read an operand as if it were contiguous (in eager mode the statistics of rows
  // always are). Batch normalization has another formula for operands that are not: one computes
  // infinity minus infinity, the other infinity times a difference.
  const auto contiguous = [](Rule rule) { return rule.With(&OpFacts::needs_contiguous, true); };
  const Rule batch = contiguous(Computed("", BatchNormFactors).Decomposes(DecomposeBatchNorm));
  auto named = [](Rule rule, const char* op) {
    rule.op = op;
    return rule;
  };
  return CannotFail({
      named(batch, "aten::_native_batch_norm_legit.no_stats"),
      named(batch, "aten::_native_batch_norm_legit_functional"),
      contiguous(Computed("aten::_weight_norm_interface", NoFactors)),
      contiguous(Computed("aten::_weight_norm_interface_backward", NoFactors)),
      named(batch, "aten::native_batch_norm"),
      contiguous(Computed("aten::native_batch_norm_backward", BatchNormFactors)
                     .Each({0})
                     .Decomposes(DecomposeBatchNormBackward)),
      contiguous(Computed("aten::native_group_norm", GroupNormFactors)
                     .Local(GroupNormLocal)
                     .Decomposes(DecomposeGroupNorm)),
      contiguous(Computed("aten::native_group_norm_backward", GroupNormFactors)
                     .Each({0})
                     .Local(GroupNormLocal)
                     .Decomposes(DecomposeGroupNormBackward)),
      Computed("aten::native_layer_norm", RowNormFactors)
          .Types(LayerNormTypes)
          .Decomposes(DecomposeLayerNorm),
      contiguous(Computed("aten::native_layer_norm_backward", RowNormFactors)
                     .Each({0})
                     .Decomposes(DecomposeLayerNormBackward)),
      Computed("spmd::channel_moments", ChannelSumFactors).Types(ChannelMomentTypes),
      Computed("spmd::channel_products", ChannelSumFactors).Each({0}).Types(LikeTheMean<2>),
      Computed("spmd::channel_squares", ChannelSumFactors).Types(LikeTheMean<1>),
  });
}

}  // namespace spmd::rules
