// SPDX-License-Identifier: Apache-2.0
// Numbers as keys see them: by their bits.
#pragma once

#include <bit>
#include <cstdint>

namespace spmd {

inline uint64_t BitsOf(double d) { return std::bit_cast<uint64_t>(d); }

// 0.0 is not -0.0, whose reciprocals differ; a NaN is itself.
inline bool SameBits(double a, double b) { return BitsOf(a) == BitsOf(b); }

}  // namespace spmd
