// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

// Head i of the query reads head i / (h/g) of key and value.
Tensor ExpandHeads(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const int64_t g = heads / x.size(1);
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), g, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// The gradient of ExpandHeads: sums the heads that share one.
Tensor SumHeads(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  return x.reshape({x.size(0), heads, x.size(1) / heads, x.size(2), x.size(3)}).sum(2);
}

void Check(const Tensor& query, const Tensor& key, const Tensor& value) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && key.size(1) > 0 &&
                  query.size(1) % key.size(1) == 0 && key.size(1) == value.size(1) &&
                  key.size(2) == value.size(2) && query.size(3) == key.size(3),
              "spmd::attention: query ", query.sizes(), ", key ", key.sizes(), " and value ",
              value.sizes(),
              " must be [b, h, s, d], [b, g, t, d] and [b, g, t, e] with h a multiple of g");
}

// The mask in the form that is added to the scores: 0 or -inf for a boolean mask.
OptionalTensor AdditiveMask(const OptionalTensor& mask, at::ScalarType dtype) {
  if (!mask.has_value() || !mask->defined()) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask->to(dtype);
  const auto options = mask->options().dtype(dtype);
  return at::where(*mask, at::scalar_tensor(0.0, options),
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(), options));
}

// Whether the flash kernel supports the call: floating-point queries on the CPU, equal head sizes,
// no empty tensors, and not both a mask and is_causal. It also needs contiguous last dimensions.
bool FlashTakes(const Tensor& query, const Tensor& value, const OptionalTensor& mask,
                bool is_causal) {
  return query.is_cpu() && query.size(3) == value.size(3) && query.size(3) > 0 &&
         at::isFloatingType(query.scalar_type()) && !(mask.has_value() && is_causal) &&
         query.numel() > 0 && value.numel() > 0;
}

Tensor LastDimContiguous(const Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

// Sums are computed at least in f32.
at::ScalarType WorkType(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

Tensor Scores(const Tensor& query, const Tensor& key, const OptionalTensor& mask, bool is_causal,
              double scale) {
  Tensor scores = at::matmul(query.mul(scale), key.transpose(-2, -1));
  if (mask.has_value()) scores.add_(*mask);
  if (is_causal) {
    const Tensor allowed =
        at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).tril();
    scores.masked_fill_(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return scores;
}

// The softmax of each row, whose sum may also be over more keys than these; zero if the whole row
// is masked.
Tensor Probabilities(const Tensor& scores, const Tensor& logsumexp) {
  const Tensor masked = logsumexp.isinf().unsqueeze(-1);
  return scores.sub(logsumexp.unsqueeze(-1)).exp_().masked_fill_(masked, 0);
}

// The type of the logsumexp, in which the flash kernel computes.
at::ScalarType RowType(const Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

std::tuple<Tensor, Tensor> Attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& attn_mask, bool is_causal,
                                     std::optional<double> scale) {
  Check(query, key, value);
  const int64_t heads = query.size(1);
  if (query.is_meta()) {
    return {
        at::empty({query.size(0), heads, query.size(2), value.size(3)}, query.options()),
        at::empty({query.size(0), heads, query.size(2)}, query.options().dtype(RowType(query)))};
  }
  Tensor k = ExpandHeads(key, heads), v = ExpandHeads(value, heads);
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  if (FlashTakes(query, value, attn_mask, is_causal)) {
    OptionalTensor mask = AdditiveMask(attn_mask, query.scalar_type());
    if (mask.has_value()) {
      mask = mask->expand({query.size(0), heads, query.size(2), k.size(2)});
    }
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        LastDimContiguous(query), LastDimContiguous(k), LastDimContiguous(v), 0.0, is_causal, mask,
        factor);
    return {out, logsumexp.to(RowType(query))};
  }
  const at::ScalarType type = WorkType(query.scalar_type());
  const Tensor scores =
      Scores(query.to(type), k.to(type), AdditiveMask(attn_mask, type), is_causal, factor);
  const Tensor logsumexp = at::logsumexp(scores, IntArrayRef{-1});
  Tensor out = at::matmul(Probabilities(scores, logsumexp), v.to(type));
  return {out.to(query.scalar_type()), logsumexp.to(RowType(query))};
}

std::tuple<Tensor, Tensor, Tensor> AttentionBackward(const Tensor& grad_out, const Tensor& query,
                                                     const Tensor& key, const Tensor& value,
                                                     const Tensor& out, const Tensor& logsumexp,
                                                     const OptionalTensor& attn_mask,
                                                     bool is_causal, std::optional<double> scale) {
  Check(query, key, value);
  if (query.is_meta()) {
    return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
  }
  const int64_t heads = query.size(1), kv_heads = key.size(1);
  Tensor k = ExpandHeads(key, heads), v = ExpandHeads(value, heads);
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  if (FlashTakes(query, value, attn_mask, is_causal)) {
    OptionalTensor mask = AdditiveMask(attn_mask, query.scalar_type());
    if (mask.has_value()) {
      mask = mask->expand({query.size(0), heads, query.size(2), k.size(2)});
    }
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        LastDimContiguous(grad_out), LastDimContiguous(query), LastDimContiguous(k),
        LastDimContiguous(v), LastDimContiguous(out), logsumexp, 0.0, is_causal, mask, factor);
    return {dq, SumHeads(dk, kv_heads), SumHeads(dv, kv_heads)};
  }
  const at::ScalarType type = WorkType(query.scalar_type());
  const Tensor q = query.to(type), g = grad_out.to(type);
  k = k.to(type);
  v = v.to(type);
  const Tensor scores = Scores(q, k, AdditiveMask(attn_mask, type), is_causal, factor);
  const Tensor p = Probabilities(scores, logsumexp);
  const Tensor dv = at::matmul(p.transpose(-2, -1), g);
  const Tensor dp = at::matmul(g, v.transpose(-2, -1));
  const Tensor ds = dp.sub(g.mul(out.to(type)).sum(-1, /*keepdim=*/true)).mul_(p).mul_(factor);
  const Tensor dq = at::matmul(ds, k), dk = at::matmul(ds.transpose(-2, -1), q);
  const at::ScalarType result = query.scalar_type();
  return {dq.to(result), SumHeads(dk, kv_heads).to(result), SumHeads(dv, kv_heads).to(result)};
}

}  // namespace spmd::runtime::kernels
