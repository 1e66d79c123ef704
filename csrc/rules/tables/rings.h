// SPDX-License-Identifier: Apache-2.0
// Ops that are written in steps. Each step needs one block of a dimension that the op needs
// whole. Over a ring of n devices the blocks travel: the dimension is written as n blocks, sharded
// by number, and rolled by one between two steps.
//
//   attention(q[b,h,s,d], k[b,g,t,d], v[b,g,t,d])  in a ring of n devices
//
//   step i   device j has its queries, block j, and keys and values of block j - i
//            attention(q[b,n·h,s/n,d], k[b,n·g,t/n,d], v[b,n·g,t/n,d])
//
// Blocks are merged with the heads: each block of queries meets one of keys, as each head does.
#pragma once

#include <array>

#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {

// Writes the node in `devices` steps. No values: it cannot be written so.
using RingFn = ValuesOrStatus (*)(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands, int64_t devices);

struct RingForm {
  int dim;                     // the dimension that is sharded, of each of these operands:
  int stays;                   // its blocks stay where they are
  std::array<int, 2> travels;  // their blocks travel
  RingFn write;
};

extern const RingForm kRingOfAttention, kRingOfAttentionBackward;

}  // namespace spmd::rules
