// SPDX-License-Identifier: Apache-2.0
// Training with fake quantization: a moving range, the quantizer that it gives, and the quantized
// values. What the flags on the device switch off is chosen there, so that nothing waits for them.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/fake_quantize_per_channel_affine_cachemask.h>
#include <ATen/ops/where.h>

#include <limits>
#include <tuple>

#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"

namespace spmd::trace {

namespace {

struct Seen {
  at::Tensor low, high;
};

// The least and the greatest element, of all of `x` or for each index of `axis`.
Seen SeenOf(const at::Tensor& x, std::optional<int64_t> axis) {
  const at::Tensor rows = axis.has_value() ? x.movedim(*axis, 0).flatten(1) : x.reshape({1, -1});
  const auto [low, high] = at::aminmax(rows, 1);
  return {low, high};
}

// The first range that is observed, then a moving average.
at::Tensor Moved(const at::Tensor& running, const at::Tensor& seen, double weight) {
  return at::where(running.isinf(), seen, running.add(seen.sub(running).mul(weight)));
}

struct Quantizer {
  at::Tensor scale, zero_point;
};

// The quantizer of a range, as PyTorch chooses it, in double precision.
Quantizer QuantizerOf(const Seen& range, int64_t least, int64_t greatest, bool symmetric) {
  constexpr double kLeastScale = 6.1e-5f;
  const auto levels = static_cast<double>(greatest - least);
  at::Tensor low = range.low.to(at::kDouble), high = range.high.to(at::kDouble);
  const at::Tensor around_zero = low.lt(0).logical_and(high.gt(0));
  if (symmetric) {
    const auto below = static_cast<double>(-((greatest - least) / 2 + 1));
    const auto above = static_cast<double>((greatest - least) / 2);
    const at::Tensor step = low.div(below).abs().maximum(high.div(above).abs());
    low = at::where(around_zero, step.mul(below).to(at::kFloat).to(at::kDouble), low);
    high = at::where(around_zero, step.mul(above).to(at::kFloat).to(at::kDouble), high);
  }
  low = low.clamp_max(0);
  high = high.clamp_min(0);
  at::Tensor scale = high.sub(low).div(levels);
  const at::Tensor rounded = scale.to(at::kFloat);
  scale = at::where(rounded.eq(0).logical_or(rounded.reciprocal().isinf()), 0.1, scale);
  // A small scale is cut off, and the range grows with it.
  const at::Tensor small = scale.lt(kLeastScale);
  const at::Tensor growth = scale.to(at::kFloat).to(at::kDouble).reciprocal().mul(kLeastScale);
  const at::Tensor grown_high = at::where(low.eq(0), kLeastScale * levels, high.mul(growth));
  const at::Tensor grown_low = at::where(high.eq(0), -kLeastScale * levels, low.mul(growth));
  const at::Tensor from_zero = low.eq(0), to_zero = high.eq(0).logical_and(low.ne(0));
  high = at::where(small.logical_and(to_zero.logical_not()), grown_high, high);
  low = at::where(small.logical_and(from_zero.logical_not()), grown_low, low);
  scale = at::where(small, kLeastScale, scale);
  const at::Tensor below = low.div(scale), above = high.div(scale);
  const at::Tensor below_error = below.abs().neg().add(std::abs(static_cast<double>(least)));
  const at::Tensor above_error = above.abs().neg().add(std::abs(static_cast<double>(greatest)));
  at::Tensor zero_point =
      at::where(below_error.lt(above_error), below.neg().add(least), above.neg().add(greatest));
  if (symmetric) {
    const double middle = static_cast<double>(least + greatest) / 2;
    zero_point = at::where(low.lt(0).logical_and(high.gt(0)), middle, zero_point);
  }
  return {scale, zero_point.clamp(least, greatest).round()};
}

void Assign(const at::Tensor& target, const at::Tensor& flag, const at::Tensor& value) {
  const at::Tensor next = at::where(flag, value.to(target.scalar_type()), target);
  target.copy_(next.reshape(target.sizes()));
}

void MovingAverageFakeQuantize(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const auto tensor = [&](int i) { return a[i].toTensor(); };
  const at::Tensor x = tensor(0), fake_quant_on = tensor(2);
  const at::Tensor running_min = tensor(3), running_max = tensor(4), scale = tensor(5),
                   zero_point = tensor(6);
  const double weight = a[7].toDouble();
  const int64_t least = a[8].toInt(), greatest = a[9].toInt(), axis = a[10].toInt();
  const bool by_row = a[11].toBool(), symmetric = a[12].toBool();
  TORCH_CHECK(axis < x.dim(),
              "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (by_row && running_min.numel() == 0) {
    const int64_t rows = x.size(axis);
    running_min.resize_({rows}).fill_(kInfinity);
    running_max.resize_({rows}).fill_(-kInfinity);
    scale.resize_({rows}).fill_(1);
    zero_point.resize_({rows}).fill_(0);
  }
  const at::Tensor observes = tensor(1).ne(0), quantizes = fake_quant_on.ne(0);
  const Seen seen = SeenOf(x, by_row ? std::optional(axis) : std::nullopt);
  Assign(running_min, observes, Moved(running_min, seen.low, weight));
  Assign(running_max, observes, Moved(running_max, seen.high, weight));
  const Quantizer q = QuantizerOf({running_min, running_max}, least, greatest, symmetric);
  Assign(scale, quantizes, q.scale);
  Assign(zero_point, quantizes, q.zero_point);
  at::Tensor out, mask;
  if (by_row) {
    std::tie(out, mask) =
        at::fake_quantize_per_channel_affine_cachemask(x, scale, zero_point, axis, least, greatest);
    out = at::where(quantizes, out, x);
    mask = mask.logical_or(quantizes.logical_not());
  } else {
    std::tie(out, mask) = at::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, scale, zero_point, fake_quant_on, least, greatest);
  }
  stack->push_back(std::move(out));
  stack->push_back(std::move(mask));
}

constexpr HandlerRow kQuantizationHandlers[] = {
    {"aten::_fused_moving_avg_obs_fq_helper", &MovingAverageFakeQuantize},
};

}  // namespace

absl::Span<const HandlerRow> QuantizationHandlers() { return kQuantizationHandlers; }

}  // namespace spmd::trace
