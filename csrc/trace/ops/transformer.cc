// SPDX-License-Identifier: Apache-2.0
// The ops that PyTorch's transformer modules use in inference, written in those that they use in
// training, whose rules say how they are sharded. Padding stays in tensors: there are no nested
// ones.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"

namespace spmd::trace {

namespace {

struct AttentionWeights {
  int64_t num_heads;
  at::Tensor in_weight, in_bias, out_weight, out_bias;
  at::Tensor mask;         // undefined for none
  int64_t mask_type = -1;  // 0: [T, T], 1: [B, T], 2: [B, heads, T, T]; true masks out
};

// The bias of the scores [B, heads, T, T], with that shape or one that broadcasts to it: -inf where
// the mask masks out. A mask of numbers is such a bias already.
at::Tensor BiasOf(const AttentionWeights& a, at::ScalarType dtype) {
  at::Tensor mask = a.mask;
  if (a.mask_type == 1) mask = mask.view({mask.size(0), 1, 1, mask.size(1)});
  if (mask.is_floating_point()) return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype))
      .masked_fill(mask.to(at::kBool), -std::numeric_limits<double>::infinity());
}

std::pair<at::Tensor, at::Tensor> Attend(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, const AttentionWeights& a,
                                         bool need_weights, bool average) {
  const int64_t width = a.out_weight.size(0);
  // Each has dimensions [B, heads, T, width of a head].
  at::Tensor q, k, v;
  if (query.is_same(key) && key.is_same(value)) {
    // If heads are sharded, all three tensors are sharded alike.
    const at::Tensor all =
        at::linear(query, a.in_weight, a.in_bias)
            .view({query.size(0), query.size(1), 3, a.num_heads, width / a.num_heads});
    const auto part = [&](int64_t n) { return all.select(2, n).transpose(1, 2); };
    q = part(0), k = part(1), v = part(2);
  } else {
    const auto project = [&](const at::Tensor& x, int64_t part) {
      const at::Tensor all = at::linear(x, a.in_weight.narrow(0, part * width, width),
                                        a.in_bias.narrow(0, part * width, width));
      return all.view({x.size(0), x.size(1), a.num_heads, width / a.num_heads}).transpose(1, 2);
    };
    q = project(query, 0), k = project(key, 1), v = project(value, 2);
  }
  at::Tensor context, weights;
  if (need_weights) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    at::Tensor scores = at::matmul(q.mul(scale), k.transpose(-2, -1));
    if (a.mask.defined()) scores = scores.add(BiasOf(a, scores.scalar_type()));
    weights = at::softmax(scores, -1);
    context = at::matmul(weights, v);
    if (average) weights = weights.mean(1);
  } else {
    const auto bias =
        a.mask.defined() ? std::optional<at::Tensor>(BiasOf(a, q.scalar_type())) : std::nullopt;
    context = at::scaled_dot_product_attention(q, k, v, bias);
  }
  context = context.transpose(1, 2).reshape({query.size(0), query.size(1), width});
  return {at::linear(context, a.out_weight, a.out_bias), weights};
}

void NativeMultiHeadAttention(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const AttentionWeights attention{a[4].toInt(),
                                   a[5].toTensor(),
                                   a[6].toTensor(),
                                   a[7].toTensor(),
                                   a[8].toTensor(),
                                   TensorOrUndefined(a[9]),
                                   a[12].isNone() ? -1 : a[12].toInt()};
  auto [out, weights] = Attend(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), attention,
                               a[10].toBool(), a[11].toBool());
  stack->emplace_back(std::move(out));
  stack->emplace_back(std::move(weights));
}

void TransformerEncoderLayer(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor src = a[0].toTensor();
  const AttentionWeights attention{a[2].toInt(),
                                   a[3].toTensor(),
                                   a[4].toTensor(),
                                   a[5].toTensor(),
                                   a[6].toTensor(),
                                   TensorOrUndefined(a[18]),
                                   a[19].isNone() ? -1 : a[19].toInt()};
  const bool gelu = a[7].toBool(), norm_first = a[8].toBool();
  const auto norm = [&](const at::Tensor& x, int first) {
    return at::layer_norm(x, {a[1].toInt()}, OptionalTensor(a[first]), OptionalTensor(a[first + 1]),
                          a[9].toDouble());
  };
  const auto attend = [&](const at::Tensor& x) {
    return Attend(x, x, x, attention, /*need_weights=*/false, /*average=*/false).first;
  };
  const auto feed = [&](const at::Tensor& x) {
    const at::Tensor inner = at::linear(x, a[14].toTensor(), a[15].toTensor());
    return at::linear(gelu ? at::gelu(inner) : at::relu(inner), a[16].toTensor(), a[17].toTensor());
  };
  if (norm_first) {
    const at::Tensor x = src.add(attend(norm(src, 10)));
    stack->emplace_back(x.add(feed(norm(x, 12))));
  } else {
    const at::Tensor x = norm(src.add(attend(src)), 10);
    stack->emplace_back(norm(x.add(feed(x)), 12));
  }
}

// True if a batch with padding may become a nested tensor. It never may; nn.TransformerEncoder then
// takes the path of training.
void IsLeftAligned(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.args.size());
  stack->emplace_back(false);
}

void NestedFromMask(SessionState&, const OpInfo&, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "torch_spmd: nested tensors are not supported on '", TheDevice(),
      "'; create nn.TransformerEncoder with enable_nested_tensor=False, which keeps the padding");
}

constexpr HandlerRow kTransformerHandlers[] = {
    {"aten::_native_multi_head_attention", &NativeMultiHeadAttention},
    {"aten::_nested_tensor_from_mask", &NestedFromMask},
    {"aten::_nested_tensor_from_mask_left_aligned", &IsLeftAligned},
    {"aten::_transformer_encoder_layer_fwd", &TransformerEncoderLayer},
};
static_assert(IsSortedAndUnique(kTransformerHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> TransformerHandlers() { return kTransformerHandlers; }

}  // namespace spmd::trace
