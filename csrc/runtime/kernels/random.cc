// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "csrc/runtime/kernels/kernels.h"
#include "csrc/runtime/kernels/philox.h"
#include "csrc/runtime/kernels/tile_runs.h"

namespace spmd::runtime::kernels {
namespace {

// Philox computes about one element per nanosecond: for fewer elements a second thread does not
// pay.
constexpr int64_t kGrain = 16384;

// Fills the elements of a tile group by group: make(group number, buffer of kGroup) for each group
// that the tile touches, then store(local index, value) for its elements. A group is computed as a
// whole even if the tile has few of its elements, so the bits of an element do not depend on the
// tile.
template <int kGroup, typename T, typename Make, typename Store>
void FillTile(const TileRuns& runs, int64_t numel, const Make& make, const Store& store) {
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) T buffer[kGroup];
    int64_t made = -1;
    runs.ForEach(begin, end, [&](int64_t local, int64_t global, int64_t length) {
      const int64_t stop = global + length;
      const int64_t shift = local - global;
      for (int64_t group = global / kGroup; group * kGroup < stop; ++group) {
        if (group != made) make(group, buffer);
        made = group;
        const int64_t base = group * kGroup;
        const int64_t from = std::max(global, base), to = std::min(stop, base + kGroup);
        for (int64_t i = from; i < to; ++i) store(i + shift, buffer[i - base]);
      }
    });
  });
}

// Each distribution is computed in one of four types and converted at the end if another is
// requested.
struct Request {
  const TileRuns& runs;
  uint64_t seed;
  uint64_t counter;
  double p0;
  double p1;
  at::ScalarType dtype;
  IntArrayRef size;
};

// Makes a tensor of T; make(words, out) computes the kGroup elements of a group.
template <int kGroup, typename T, typename Make>
Tensor MakeTile(const Request& r, const Make& make) {
  Tensor result = at::empty(r.size, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  T* out = result.mutable_data_ptr<T>();
  FillTile<kGroup, T>(
      r.runs, result.numel(),
      [&](int64_t group, T* buffer) {
        PhiloxGroup words;
        GenerateGroup(r.seed, r.counter, group, words);
        make(words, buffer);
      },
      [&](int64_t i, T x) { out[i] = x; });
  return result;
}

double Unit32(uint32_t w) { return (static_cast<double>(w) + 0.5) * 0x1p-32; }
uint64_t Wide(const PhiloxGroup& g, int j) {
  const int word = 2 * (j / kLanes), lane = j % kLanes;
  return g.words[word][lane] | static_cast<uint64_t>(g.words[word + 1][lane]) << 32;
}
double Unit53(uint64_t w) { return static_cast<double>(w >> 11) * 0x1p-53; }

Tensor Uniform(const Request& r) {
  if (r.dtype == at::kDouble) {
    return MakeTile<32, double>(r, [&](const PhiloxGroup& g, double* out) {
      for (int j = 0; j < 32; ++j) {
        const double x = r.p0 + Unit53(Wide(g, j)) * (r.p1 - r.p0);
        out[j] = x >= r.p1 ? r.p0 : x;
      }
    });
  }
  const float low = static_cast<float>(r.p0), high = static_cast<float>(r.p1);
  if (r.dtype == at::kHalf || r.dtype == at::kBFloat16) {
    // The numbers have as many bits as the type holds, and are never rounded to p1.
    const bool half = r.dtype == at::kHalf;
    const float steps = half ? 0x1p11f : 0x1p8f;
    return MakeTile<64, float>(r, [&](const PhiloxGroup& g, float* out) {
      UniformsOf(g, out);
      for (int j = 0; j < 64; ++j) {
        const float x = low + std::floor(out[j] * steps) / steps * (high - low);
        const float rounded = half ? static_cast<float>(static_cast<c10::Half>(x))
                                   : static_cast<float>(static_cast<c10::BFloat16>(x));
        out[j] = rounded >= high ? low : rounded;
      }
    });
  }
  return MakeTile<64, float>(r, [&](const PhiloxGroup& g, float* out) {
    UniformsOf(g, out);
    for (int j = 0; j < 64; ++j) {
      const float x = low + out[j] * (high - low);
      out[j] = x >= high ? low : x;
    }
  });
}

// Applies `map` to standard normal numbers.
template <typename Map>
Tensor Normal(const Request& r, const Map& map) {
  if (r.dtype == at::kDouble) {
    return MakeTile<32, double>(r, [&](const PhiloxGroup& g, double* out) {
      for (int j = 0; j < kLanes; ++j) {
        const double u1 = Unit53(Wide(g, j)) + 0x1p-53, u2 = Unit53(Wide(g, j + kLanes));
        const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * M_PI * u2;
        out[j] = map(radius * std::cos(angle));
        out[j + kLanes] = map(radius * std::sin(angle));
      }
    });
  }
  return MakeTile<64, float>(r, [&](const PhiloxGroup& g, float* out) {
    NormalsOf(g, out);
    for (int j = 0; j < 64; ++j) out[j] = map(out[j]);
  });
}

// Draws any distribution by inversion: map(u) for u in (0, 1).
template <typename Map>
Tensor Invert(const Request& r, const Map& map) {
  if (r.dtype == at::kDouble) {
    return MakeTile<32, double>(r, [&](const PhiloxGroup& g, double* out) {
      for (int j = 0; j < 32; ++j) out[j] = map(Unit53(Wide(g, j)) + 0x1p-54);
    });
  }
  return MakeTile<64, float>(r, [&](const PhiloxGroup& g, float* out) {
    const uint32_t* words = &g.words[0][0];
    for (int j = 0; j < 64; ++j) out[j] = static_cast<float>(map(Unit32(words[j])));
  });
}

// A word w counts as true if w < p·2³². The comparison has 32 bits, so that the loops over words
// are short.
class Threshold {
 public:
  explicit Threshold(double p) {
    TORCH_CHECK(p >= 0 && p <= 1, "spmd::random: probability ", p, " is not between 0 and 1");
    const uint64_t limit = static_cast<uint64_t>(std::llround(p * 0x1p32));
    none_ = limit == 0;
    last_ = static_cast<uint32_t>(limit - 1);
  }
  bool operator()(uint32_t word) const { return !none_ & (word <= last_); }

 private:
  bool none_;
  uint32_t last_;
};

Tensor Bernoulli(const Request& r) {
  const Threshold holds(r.p0);
  return MakeTile<64, bool>(r, [&](const PhiloxGroup& g, bool* out) {
    const uint32_t* words = &g.words[0][0];
    for (int j = 0; j < 64; ++j) out[j] = holds(words[j]);
  });
}

Tensor RandInt(const Request& r) {
  TORCH_CHECK(r.p1 > r.p0, "spmd::random: randint needs low < high; got ", r.p0, " and ", r.p1);
  const uint64_t low = static_cast<uint64_t>(static_cast<int64_t>(r.p0));
  // p1 may be 2⁶³, which does not fit into int64.
  const uint64_t high =
      r.p1 >= 0x1p63 ? uint64_t{1} << 63 : static_cast<uint64_t>(static_cast<int64_t>(r.p1));
  const uint64_t range = high - low;
  if (range > (uint64_t{1} << 32)) {
    return MakeTile<32, int64_t>(r, [&](const PhiloxGroup& g, int64_t* out) {
      for (int j = 0; j < 32; ++j) {
        const auto product = static_cast<unsigned __int128>(Wide(g, j)) * range;
        out[j] = static_cast<int64_t>(low + static_cast<uint64_t>(product >> 64));
      }
    });
  }
  return MakeTile<64, int64_t>(r, [&](const PhiloxGroup& g, int64_t* out) {
    const uint32_t* words = &g.words[0][0];
    for (int j = 0; j < 64; ++j) {
      // `range` may be 2³² itself; the product then needs exactly 64 bits.
      out[j] = static_cast<int64_t>(low + ((uint64_t{words[j]} * range) >> 32));
    }
  });
}

Tensor Make(const Request& r, std::string_view distribution) {
  const double p0 = r.p0, p1 = r.p1;
  if (distribution == "uniform") return Uniform(r);
  if (distribution == "bernoulli") return Bernoulli(r);
  if (distribution == "randint") return RandInt(r);
  if (distribution == "normal") {
    return Normal(r, [p0, p1](auto z) {
      return static_cast<decltype(z)>(p0) + static_cast<decltype(z)>(p1) * z;
    });
  }
  if (distribution == "log_normal") {
    return Normal(r, [p0, p1](auto z) {
      return std::exp(static_cast<decltype(z)>(p0) + static_cast<decltype(z)>(p1) * z);
    });
  }
  if (distribution == "exponential") {
    return Invert(r, [p0](double u) { return -std::log(u) / p0; });
  }
  if (distribution == "cauchy") {
    return Invert(r, [p0, p1](double u) { return p0 + p1 * std::tan(M_PI * (u - 0.5)); });
  }
  if (distribution == "geometric") {
    return Invert(r, [p0](double u) { return std::ceil(std::log(u) / std::log1p(-p0)); });
  }
  TORCH_CHECK(false, "spmd::random: unknown distribution '", distribution,
              "'; known are uniform, normal, bernoulli, randint, exponential, log_normal, cauchy, "
              "geometric");
}

}  // namespace

Tensor Random(IntArrayRef size, IntArrayRef offset, IntArrayRef global_size, int64_t seed,
              int64_t counter, std::string_view distribution, double p0, double p1,
              at::ScalarType dtype, std::optional<at::Device> device) {
  const at::Device where = device.value_or(at::Device(at::kCPU));
  if (where.is_meta()) return at::empty(size, at::TensorOptions().dtype(dtype).device(where));
  // Other devices get the CPU's numbers, since the values are part of the meaning of a program.
  const TileRuns runs(size, offset, global_size);
  return Make({runs, static_cast<uint64_t>(seed), static_cast<uint64_t>(counter), p0, p1, dtype,
               size},
              distribution)
      .to(at::TensorOptions().dtype(dtype).device(where));
}

std::tuple<Tensor, Tensor> Dropout(const Tensor& input, double p, int64_t seed, int64_t counter,
                                   IntArrayRef offset, IntArrayRef global_size) {
  const Threshold keeps(1.0 - p);
  const double scale = p == 1.0 ? 0.0 : 1.0 / (1.0 - p);
  if (!input.is_cpu()) {
    Tensor mask = Random(input.sizes(), offset, global_size, seed, counter, "bernoulli", 1.0 - p, 0,
                         at::kBool, input.device());
    return {input.mul(mask).mul_(scale), mask};
  }
  const Tensor x = input.contiguous();
  Tensor out = at::empty(x.sizes(), x.options());
  Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  const TileRuns runs(input.sizes(), offset, global_size);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "spmd::dropout", [&] {
    using Work = at::opmath_type<scalar_t>;
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    scalar_t* result = out.mutable_data_ptr<scalar_t>();
    bool* kept = mask.mutable_data_ptr<bool>();
    FillTile<64, uint32_t>(
        runs, x.numel(),
        [&](int64_t group, uint32_t* buffer) {
          PhiloxGroup words;
          GenerateGroup(static_cast<uint64_t>(seed), static_cast<uint64_t>(counter), group, words);
          std::copy_n(&words.words[0][0], 64, buffer);
        },
        [&](int64_t i, uint32_t w) {
          const bool keep = keeps(w);
          kept[i] = keep;
          result[i] =
              keep ? static_cast<scalar_t>(static_cast<Work>(in[i]) * static_cast<Work>(scale))
                   : scalar_t(0);
        });
  });
  return {out, mask};
}

}  // namespace spmd::runtime::kernels
