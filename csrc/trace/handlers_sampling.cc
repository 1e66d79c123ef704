// SPDX-License-Identifier: Apache-2.0
// Draws by weight. Each sample depends on its row's weights and on counters only, never on how a
// sum was cut: a race of exponentials (the least of q / p wins with probability p) picks without
// replacement, and cumulative weights in integers, whose sums are exact, pick with it.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/searchsorted.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "csrc/trace/arguments.h"
#include "csrc/trace/kernel.h"

namespace spmd::trace {

namespace {

constexpr int64_t kMostCategories = 1 << 24;  // floats count no further; as in eager

void CheckShape(const at::Tensor& weights, int64_t samples, bool replacement) {
  TORCH_CHECK(
      at::isFloatingType(weights.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(weights.dim() == 1 || weights.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || samples <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(weights.size(-1) <= kMostCategories, "number of categories cannot exceed 2^24");
}

// Waits for two numbers.
void CheckWeights(const at::Tensor& weights, bool needs_a_sum) {
  const at::Tensor fine = weights.amax().lt(INFINITY).logical_and(weights.amin().ge(0));
  const at::Tensor some = weights.amax(-1).gt(0).all();
  const at::Tensor both = fine.to(at::kLong).add(some.to(at::kLong), 2);
  const int64_t verdict = both.item<int64_t>();
  TORCH_CHECK((verdict & 1) != 0, "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(!needs_a_sum || (verdict & 2) != 0,
              "invalid multinomial distribution (sum of probabilities <= 0)");
}

// In units of a fraction of the row's greatest weight so small that no row's sum overflows. None
// but zero becomes zero.
at::Tensor InUnits(const at::Tensor& weights) {
  const auto categories = static_cast<uint64_t>(weights.size(-1));
  const int bits = std::min(52, 62 - static_cast<int>(std::bit_width(categories)));
  const at::Tensor wide = weights.to(at::kDouble);
  return wide.div(wide.amax(-1, /*keepdim=*/true)).mul(std::ldexp(1.0, bits)).ceil().to(at::kLong);
}

at::Tensor DrawWithReplacement(const at::Tensor& weights, int64_t samples,
                               const std::optional<at::Generator>& generator) {
  const at::Tensor up_to = InUnits(weights).cumsum(-1);
  const at::Tensor total = up_to.narrow(-1, up_to.size(-1) - 1, 1);
  std::vector<int64_t> size = weights.sizes().vec();
  size.back() = samples;
  const at::Tensor uniform = at::rand(size, generator, weights.options().dtype(at::kDouble));
  // The first category beyond which less than all has been passed; never one of weight zero.
  const at::Tensor unit = uniform.mul(total).to(at::kLong).minimum(total.sub(1));
  return at::searchsorted(up_to, unit, /*out_int32=*/false, /*right=*/true);
}

at::Tensor DrawWithoutReplacement(const at::Tensor& weights, int64_t samples,
                                  const std::optional<at::Generator>& generator) {
  const at::Tensor times = at::empty_like(weights).exponential_(1, generator);
  const at::Tensor speed = weights.div(times);
  if (samples == 1) return at::argmax(speed, -1, /*keepdim=*/true);
  return std::get<1>(speed.topk(samples, -1));
}

void Multinomial(const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor weights = a[0].toTensor();
  const int64_t samples = a[1].toInt();
  const bool replacement = a[2].toBool();
  const std::optional<at::Generator> generator = a[3].toOptional<at::Generator>();
  CheckShape(weights, samples, replacement);
  if (weights.numel() == 0) {
    std::vector<int64_t> size = weights.sizes().vec();
    size.back() = samples;
    stack->push_back(at::empty(size, weights.options().dtype(at::kLong)));
    return;
  }
  CheckWeights(weights, replacement);
  stack->push_back(replacement && samples > 1
                       ? DrawWithReplacement(weights, samples, generator)
                       : DrawWithoutReplacement(weights, samples, generator));
}

constexpr HandlerRow kRows[] = {
    {"aten::multinomial", &Multinomial},
    {"aten::multinomial.out", &RunIntoOut},
};

}  // namespace

absl::Span<const HandlerRow> SamplingHandlers() { return kRows; }

}  // namespace spmd::trace
