// SPDX-License-Identifier: Apache-2.0
// Draws that take as many random words as they need, by the distributions of <random>. Each element
// has an engine of its own, which counts blocks of words that belong to the element's position in
// the global tensor (philox.h).
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "csrc/runtime/kernels/kernels.h"
#include "csrc/runtime/kernels/philox.h"
#include "csrc/runtime/kernels/tile_runs.h"

namespace spmd::runtime::kernels {
namespace {

// A draw takes some hundred nanoseconds.
constexpr int64_t kGrain = 256;

// From this number of events on, integers are not exact, and counts are drawn as normal numbers.
constexpr double kManyEvents = 0x1p52;

// The random words of one element; a UniformRandomBitGenerator.
class Words {
 public:
  using result_type = uint32_t;

  Words(int64_t seed, int64_t counter, int64_t element)
      : key_{Low(seed), High(seed)},
        counter_{Low(element), High(element), Low(counter), High(counter)} {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  result_type operator()() {
    if (next_ == block_.size()) {
      block_ = Philox4x32(counter_, key_);
      counter_[1] += kNextBlock;
      next_ = 0;
    }
    return block_[next_++];
  }

 private:
  static constexpr uint32_t kNextBlock = 1 << 8;  // 2⁴⁰ without the low word, which does not count
  static uint32_t Low(int64_t x) { return static_cast<uint32_t>(x); }
  static uint32_t High(int64_t x) { return static_cast<uint32_t>(static_cast<uint64_t>(x) >> 32); }

  std::array<uint32_t, 2> key_;
  PhiloxBlock counter_, block_;
  size_t next_ = 4;
};

struct Tile {
  int64_t seed;
  int64_t counter;
  IntArrayRef offset;
  IntArrayRef global_size;
};

// Calls draw(words, local index) for all elements of a tile.
template <typename Draw>
void ForElements(const Tile& tile, IntArrayRef size, const Draw& draw) {
  const TileRuns runs(size, tile.offset, tile.global_size);
  at::parallel_for(0, c10::multiply_integers(size), kGrain, [&](int64_t begin, int64_t end) {
    runs.ForEach(begin, end, [&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        Words words(tile.seed, tile.counter, global + i);
        draw(words, local + i);
      }
    });
  });
}

double NormalNumber(Words& words, double mean, double variance) {
  return std::max(0.0,
                  std::round(std::normal_distribution<double>(mean, std::sqrt(variance))(words)));
}

double PoissonNumber(Words& words, double rate) {
  TORCH_CHECK(rate >= 0, "invalid Poisson rate, expected rate to be non-negative");
  if (rate == 0 || std::isinf(rate)) return rate;
  if (rate > kManyEvents) return NormalNumber(words, rate, rate);
  return static_cast<double>(std::poisson_distribution<int64_t>(rate)(words));
}

double BinomialNumber(Words& words, double count, double prob) {
  if (std::isnan(count) || std::isnan(prob)) return std::numeric_limits<double>::quiet_NaN();
  if (count <= 0 || prob <= 0) return 0;
  if (prob >= 1 || std::isinf(count)) return count;
  if (count > kManyEvents) {
    return std::min(count, NormalNumber(words, count * prob, count * prob * (1 - prob)));
  }
  return static_cast<double>(
      std::binomial_distribution<int64_t>(static_cast<int64_t>(count), prob)(words));
}

double GammaNumber(Words& words, double alpha) {
  if (std::isnan(alpha) || alpha < 0) return std::numeric_limits<double>::quiet_NaN();
  if (alpha == 0 || std::isinf(alpha)) return alpha;
  return std::gamma_distribution<double>(alpha, 1.0)(words);
}

// As in eager mode, a number that is too small for the type becomes the smallest normal number
// instead of zero, so that its logarithm is finite.
template <typename T>
T AtLeastSmallest(double x) {
  const T smallest = std::numeric_limits<T>::min();
  return x < static_cast<double>(smallest) ? smallest : static_cast<T>(x);
}

// Draws one element from each parameter: draw(words, parameter), in the parameter's type.
template <typename Draw>
Tensor Map(const Tensor& parameter, const Tile& tile, const Draw& draw) {
  const Tensor given = parameter.cpu().contiguous();
  Tensor result = at::empty(given.sizes(), given.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, given.scalar_type(), "spmd::draw", [&] {
    const scalar_t* in = given.const_data_ptr<scalar_t>();
    scalar_t* out = result.mutable_data_ptr<scalar_t>();
    ForElements(tile, given.sizes(), [&](Words& words, int64_t i) { out[i] = draw(words, in[i]); });
  });
  return result.to(parameter.device());
}

}  // namespace

Tensor Poisson(const Tensor& rate, int64_t seed, int64_t counter, IntArrayRef offset,
               IntArrayRef global_size) {
  return Map(rate, {seed, counter, offset, global_size}, [](Words& words, auto x) {
    return static_cast<decltype(x)>(PoissonNumber(words, static_cast<double>(x)));
  });
}

Tensor StandardGamma(const Tensor& alpha, int64_t seed, int64_t counter, IntArrayRef offset,
                     IntArrayRef global_size) {
  return Map(alpha, {seed, counter, offset, global_size}, [](Words& words, auto x) {
    return AtLeastSmallest<decltype(x)>(GammaNumber(words, static_cast<double>(x)));
  });
}

Tensor Binomial(const Tensor& count, const Tensor& prob, int64_t seed, int64_t counter,
                IntArrayRef offset, IntArrayRef global_size) {
  TORCH_CHECK(count.sizes() == prob.sizes(), "spmd::binomial: counts of size ", count.sizes(),
              " and probabilities of size ", prob.sizes());
  const Tensor counts = count.cpu().contiguous();
  const Tensor probs = prob.cpu().to(counts.scalar_type()).contiguous();
  Tensor result = at::empty(counts.sizes(), counts.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, counts.scalar_type(), "spmd::binomial", [&] {
        const scalar_t* n = counts.const_data_ptr<scalar_t>();
        const scalar_t* p = probs.const_data_ptr<scalar_t>();
        scalar_t* out = result.mutable_data_ptr<scalar_t>();
        ForElements(
            {seed, counter, offset, global_size}, counts.sizes(), [&](Words& words, int64_t i) {
              out[i] = static_cast<scalar_t>(
                  BinomialNumber(words, static_cast<double>(n[i]), static_cast<double>(p[i])));
            });
      });
  return result.to(count.device());
}

Tensor Dirichlet(const Tensor& alpha, int64_t seed, int64_t counter, IntArrayRef offset,
                 IntArrayRef global_size) {
  TORCH_CHECK(alpha.dim() > 0 && alpha.size(-1) == global_size.back(),
              "spmd::dirichlet: the last dimension must not be sharded; got ", alpha.sizes(),
              " of ", global_size);
  // The numbers of a row are summed in double precision before any of them is rounded.
  const Tensor gamma = Map(alpha.cpu().to(at::kDouble), {seed, counter, offset, global_size},
                           [](Words& words, auto x) { return GammaNumber(words, x); });
  const int64_t columns = alpha.size(-1);
  Tensor result = at::empty(alpha.sizes(), alpha.options().device(at::kCPU));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, alpha.scalar_type(), "spmd::dirichlet", [&] {
        const double below_one = 1 - std::numeric_limits<scalar_t>::epsilon() / 2;
        const double* in = gamma.const_data_ptr<double>();
        scalar_t* out = result.mutable_data_ptr<scalar_t>();
        for (int64_t begin = 0; begin < alpha.numel(); begin += columns) {
          double sum = 0;
          for (int64_t i = begin; i < begin + columns; ++i) sum += in[i];
          for (int64_t i = begin; i < begin + columns; ++i) {
            out[i] = AtLeastSmallest<scalar_t>(std::min(in[i] / sum, below_one));
          }
        }
      });
  return result.to(alpha.device());
}

}  // namespace spmd::runtime::kernels
