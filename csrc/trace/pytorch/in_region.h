// SPDX-License-Identifier: Apache-2.0
// Whether a thread is in manual regions.
#pragma once

#include <cstdint>
#include <vector>

namespace spmd::trace {

// The levels of vmap of their axes, the outermost first.
inline thread_local std::vector<int64_t> region_levels;

}  // namespace spmd::trace
