// SPDX-License-Identifier: Apache-2.0
// Asks for memory before it is needed. One training step touches more than the inner caches hold,
// so most of what it reads next has been evicted; on a machine that shares its outer cache, to main
// memory.
#pragma once

#include <cstddef>

namespace spmd {

inline constexpr size_t kCacheLineBytes = 64;

// Prefetches the cache lines of the `bytes` that start at `begin`.
inline void Prefetch(const void* begin, size_t bytes = 1) {
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + at);
  }
}

}  // namespace spmd
