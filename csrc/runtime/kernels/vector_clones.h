// SPDX-License-Identifier: Apache-2.0
// Loops for the vectors that the machine has: SPMD_VECTOR_CLONES before a function compiles it for
// several, SPMD_INLINE before what it calls makes that part of each.
#pragma once

// One binary for all x86 machines; the loader picks the widest version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SPMD_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SPMD_VECTOR_CLONES
#endif

#define SPMD_INLINE inline __attribute__((always_inline))
