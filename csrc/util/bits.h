// SPDX-License-Identifier: Apache-2.0
// Comparing doubles by their bits, as cache keys must.
#pragma once

#include <bit>
#include <cstdint>

namespace spmd {

inline uint64_t BitsOf(double d) { return std::bit_cast<uint64_t>(d); }

// True if `a` and `b` have the same bits: 0.0 differs from -0.0, whose reciprocal differs, and a
// NaN equals itself.
inline bool SameBits(double a, double b) { return BitsOf(a) == BitsOf(b); }

}  // namespace spmd
