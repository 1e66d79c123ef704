// SPDX-License-Identifier: Apache-2.0
// Asking for memory before it is needed. A step goes over more than the nearer caches hold, so that
// most of what it comes to is far away: on a machine whose outer cache others use, as far as
// memory.
#pragma once

#include <cstddef>

namespace spmd {

inline constexpr size_t kCacheLineBytes = 64;

// The lines of `bytes` from `begin` on.
inline void Prefetch(const void* begin, size_t bytes = 1) {
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + at);
  }
}

}  // namespace spmd
