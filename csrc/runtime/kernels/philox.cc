// SPDX-License-Identifier: Apache-2.0
// This file is compiled with -O3 and without contraction into fused multiply-adds, so that every
// machine and every lane gives the same bits.
#include "csrc/runtime/kernels/philox.h"

#include <cmath>
#include <cstring>

#include "csrc/runtime/kernels/vector_clones.h"

namespace spmd::runtime::kernels {
namespace {

template <typename To, typename From>
SPMD_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The natural logarithm of a normal positive float, within 2 ulp. With x = m·2ᵉ and m in [√½, √2):
// log m = 2·artanh(s), s = (m − 1)/(m + 1), by its series (|s| < 0.172; the s¹¹ term is below
// 1e-9).
SPMD_INLINE float Log(float x) {
  const int32_t bits = BitCast<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = BitCast<float>(bits - exponent * (1 << 23));
  const float s = (m - 1.0f) / (m + 1.0f);
  const float t = s * s;
  const float series = 1.0f + t * (1.0f / 3 + t * (1.0f / 5 + t * (1.0f / 7 + t * (1.0f / 9))));
  return static_cast<float>(exponent) * 0.693147181f + 2.0f * s * series;
}

// The cosine and sine of 2πu for u in [0, 1): reduced to the nearest quarter turn, then by the
// Taylor series on [−π/4, π/4].
SPMD_INLINE void CosSin(float u, float& cosine, float& sine) {
  const float quarters = u * 4.0f;
  const int32_t q = static_cast<int32_t>(quarters + 0.5f);
  const float x = (quarters - static_cast<float>(q)) * 1.57079633f;
  const float t = x * x;
  const float s =
      x * (1.0f + t * (-1.0f / 6 + t * (1.0f / 120 + t * (-1.0f / 5040 + t * (1.0f / 362880)))));
  const float c = 1.0f + t * (-0.5f + t * (1.0f / 24 + t * (-1.0f / 720 + t * (1.0f / 40320))));
  const float a = (q & 1) ? s : c;
  const float b = (q & 1) ? c : s;
  cosine = ((q + 1) & 2) ? -a : a;
  sine = (q & 2) ? -b : b;
}

}  // namespace

SPMD_VECTOR_CLONES
void GenerateGroup(uint64_t seed, uint64_t counter, int64_t group, PhiloxGroup& result) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  const uint64_t first = static_cast<uint64_t>(group) * kLanes;
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<uint32_t>(first) + static_cast<uint32_t>(i);  // no carry: 16 divides 2³²
    c1[i] = static_cast<uint32_t>(first >> 32);
    c2[i] = static_cast<uint32_t>(counter);
    c3[i] = static_cast<uint32_t>(counter >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i];
      const uint64_t b = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  std::memcpy(result.words[0], c0, sizeof c0);
  std::memcpy(result.words[1], c1, sizeof c1);
  std::memcpy(result.words[2], c2, sizeof c2);
  std::memcpy(result.words[3], c3, sizeof c3);
}

SPMD_VECTOR_CLONES
void UniformsOf(const PhiloxGroup& group, float* result) {
  const uint32_t* words = &group.words[0][0];
  for (int i = 0; i < 4 * kLanes; ++i) {
    result[i] = static_cast<float>(static_cast<int32_t>(words[i] >> 8)) * 0x1p-24f;
  }
}

SPMD_VECTOR_CLONES
void NormalsOf(const PhiloxGroup& group, float* result) {
  for (int pair = 0; pair < 2; ++pair) {
    const uint32_t* first = group.words[2 * pair];
    const uint32_t* second = group.words[2 * pair + 1];
    float* cosines = result + 2 * pair * kLanes;
    float* sines = cosines + kLanes;
    for (int i = 0; i < kLanes; ++i) {
      const float u1 = static_cast<float>(static_cast<int32_t>((first[i] >> 8) + 1)) * 0x1p-24f;
      const float u2 = static_cast<float>(static_cast<int32_t>(second[i] >> 8)) * 0x1p-24f;
      const float radius = __builtin_sqrtf(-2.0f * Log(u1));
      float cosine, sine;
      CosSin(u2, cosine, sine);
      cosines[i] = radius * cosine;
      sines[i] = radius * sine;
    }
  }
}

}  // namespace spmd::runtime::kernels
