// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC'11). Element i of a random tensor, i being its linear row-major
// index in the *global* tensor, depends on (seed, counter, i) only: never on the tile, the mesh or
// threads.
//
// Key      (low, high) 32 bits of the seed.
// Counter  (low, high) of the block number, (low, high) of the op's counter.
//
// A block gives four 32-bit words. Elements come in groups of 16 blocks, so that 16 lanes run side
// by side; within a group the word is the slow index:
//   one word per element   group i / 64, j = i % 64: word j / 16 of block 16·group + j % 16
//   two words per element  group i / 32, j = i % 32: words 2·(j / 16) (low half) and 2·(j / 16) + 1
//                          of block 16·group + j % 16
// f64 and integers from a range beyond 2³² take two words, bernoulli and dropout always one.
//
//   uniform      u = (w >> 8)·2⁻²⁴ in [0, 1) for f32, the top 11 and 8 bits for f16 and bf16,
//                53 bits for f64;  p0 + u·(p1 − p0), and p0 where rounding gives p1
//   normal       Box-Muller. f32: the words (0, 1) of a block give elements j and j + 16 of the
//                group (cosine, sine), the words (2, 3) j + 32 and j + 48. f64: all four words of a
//                block give elements j and j + 16.  u₁ in (0, 1], u₂ in [0, 1)
//   bernoulli    w < p0·2³²
//   randint      p0 + ⌊w·(p1 − p0) / 2³²⌋ (or 2⁶⁴)
//   others       by inversion of u = (w + ½)·2⁻³² (f64: 53 bits + ½)
//
// Draws that reject take as many words as they need (Poisson, binomial, gamma, Dirichlet): element
// i has blocks of its own, i + 2⁴⁰·k for k = 0, 1, …, with four words each.
#pragma once

#include <array>
#include <cstdint>

namespace spmd::runtime::kernels {

using PhiloxBlock = std::array<uint32_t, 4>;

// Computes one block in plain form, for tests and for readers; GenerateGroup computes 16 at once.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

inline constexpr int kLanes = 16;

// The words of the 16 blocks of a group: words[word][lane].
struct PhiloxGroup {
  alignas(64) uint32_t words[4][kLanes];
};

void GenerateGroup(uint64_t seed, uint64_t counter, int64_t group, PhiloxGroup& result);
// Writes 64 uniform numbers in [0, 1) with 24 bits each.
void UniformsOf(const PhiloxGroup& group, float* result);
// Writes 64 standard normal numbers.
void NormalsOf(const PhiloxGroup& group, float* result);

}  // namespace spmd::runtime::kernels
