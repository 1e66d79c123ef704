// SPDX-License-Identifier: Apache-2.0
// Draws by weight. Each sample depends on its row's weights and on counters only, never on how a
// sum was sharded. A race of exponentials (the least q / p wins with probability p) draws without
// replacement; cumulative integer weights, whose sums are exact, draw with replacement.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/searchsorted.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/read_host.h"

namespace spmd::trace {

namespace {

constexpr int64_t kMostCategories = 1 << 24;  // floats represent no larger counts; as in eager

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

// `x` itself; the program refuses it if it finds an element outside [low, high].
at::Tensor InRange(SessionState& state, const at::Tensor& x, double low, double high,
                   const char* refusal) {
  const TapeId checked = EmitNamed(state, "spmd::in_range", {Read(state, x)},
                                   {{"low", low}, {"high", high}, {"refusal", refusal}}, TypeOf(x));
  return NewTensor(state, TensorMeta::Contiguous(x.scalar_type(), x.sizes()), checked);
}

constexpr const char* kNoWeights = "probability tensor contains either `inf`, `nan` or element < 0";
constexpr const char* kNoSum = "invalid multinomial distribution (sum of probabilities <= 0)";

// True if the value is still on the host, so that reading it waits for nothing.
bool IsOnHost(const at::Tensor& x) {
  const ValuePtr& value = BufferOf(x)->value();
  return value != nullptr && value->host.defined();
}

void CheckOnHost(SessionState& state, const at::Tensor& weights, bool needs_a_sum) {
  const at::Tensor host = ReadHost(state, weights, "multinomial");
  const bool fine = host.amax().lt(INFINITY).logical_and(host.amin().ge(0)).item<bool>();
  TORCH_CHECK(fine, kNoWeights);
  TORCH_CHECK(!needs_a_sum || host.amax(-1).gt(0).all().item<bool>(), kNoSum);
}

// Checks weights without waiting: invalid weights are refused here if their values are known, and
// otherwise when the draw runs.
at::Tensor Checked(SessionState& state, const at::Tensor& weights, bool needs_a_sum) {
  if (IsOnHost(weights)) {
    CheckOnHost(state, weights, needs_a_sum);
    return weights;
  }
  const at::Tensor fine =
      InRange(state, weights, 0, std::numeric_limits<double>::max(), kNoWeights);
  if (!needs_a_sum) return fine;
  const at::Tensor greatest =
      InRange(state, fine.amax(-1, /*keepdim=*/true), std::numeric_limits<double>::denorm_min(),
              std::numeric_limits<double>::infinity(), kNoSum);
  return fine.mul(greatest.gt(0));  // multiplies by one
}

// The weights as integers, in units of a fraction of the row's greatest weight that is so small
// that no row's sum overflows. Only zero becomes zero.
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
  // The first category whose cumulative weight exceeds what is drawn; never one of weight zero.
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

void Multinomial(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
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
  const at::Tensor checked = Checked(state, weights, replacement);
  stack->push_back(replacement && samples > 1
                       ? DrawWithReplacement(checked, samples, generator)
                       : DrawWithoutReplacement(checked, samples, generator));
}

constexpr HandlerRow kSamplingHandlers[] = {
    {"aten::multinomial", &Multinomial},
    {"aten::multinomial.out", &RunIntoOut},
};
static_assert(IsSortedAndUnique(kSamplingHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> SamplingHandlers() { return kSamplingHandlers; }

}  // namespace spmd::trace
