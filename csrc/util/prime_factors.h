// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace spmd {

// The prime factors of n ≥ 1, ascending: 12 is 2 · 2 · 3.
std::vector<int64_t> PrimeFactors(int64_t n);

}  // namespace spmd
