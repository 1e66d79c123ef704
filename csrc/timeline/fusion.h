// SPDX-License-Identifier: Apache-2.0
// Which calls one kernel computes, and the bytes that each call reads from and writes to a device's
// memory.
//
// Point-wise calls and the reductions that read them are fused with the calls whose results they
// read, unless a product, a collective or a finished reduction lies between. Softmax and its like
// are two passes: the first is fused with what makes the operand, the second with what reads the
// result. What is passed inside a cluster never reaches memory, a value that a cluster reads twice
// is read once, and a product whose result one cluster alone reads is computed by that cluster's
// kernel.
//
//   %1 = mm(%x, %w)         reads x, w; writes nothing
//   %2 = add(%1, %b)        reads b                        cluster 0
//   %3 = gelu(%2)           writes %3                      cluster 0
//   %4 = mm(%3, %v)         reads %3, v; writes %4
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/program/program.h"
#include "csrc/timeline/work.h"

namespace spmd::timeline {

struct Fusion {
  std::vector<int> cluster;   // by instruction; -1: not fused with anything
  std::vector<double> bytes;  // by instruction: read and written
};

// `work` is by instruction; entries of moves and frees are not read.
Fusion Fuse(const program::Program& program, const std::vector<Work>& work);

}  // namespace spmd::timeline
