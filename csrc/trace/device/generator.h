// SPDX-License-Identifier: Apache-2.0
// Random state is a seed and a counter of random ops. The values that an op draws depend on both
// and on the global index of each element, never on the device that holds the element.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace spmd::trace {

struct RandomKey {
  uint64_t seed;
  uint64_t counter;
};

const at::Generator& DefaultGenerator();
at::Generator NewGenerator();
// The key of the next random op. The op is counted.
RandomKey NextRandom(const std::optional<at::Generator>& generator);

}  // namespace spmd::trace
