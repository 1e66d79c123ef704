// SPDX-License-Identifier: Apache-2.0
// Compiles loops for the vector instructions that the machine has. SPMD_VECTOR_CLONES in front of a
// function compiles it for several instruction sets; SPMD_INLINE in front of a function that it
// calls makes that a part of each version.
#pragma once

// One binary serves all x86 machines; the loader picks the widest version that the machine has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SPMD_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SPMD_VECTOR_CLONES
#endif

#define SPMD_INLINE inline __attribute__((always_inline))
