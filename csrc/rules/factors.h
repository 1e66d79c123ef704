// SPDX-License-Identifier: Apache-2.0
// Factors are the independent indices of one op call; each runs over dimensions of its tensors.
// Propagation, choice, cost and partition read everything that they know of an op from its factors.
//
//   mm        m k, k n -> m n           factors m, k, n;  k is reduced
//   view      [4,6] -> [24]             (a b) compound:   operand dims {a},{b}; result dim {a,b}
//   layer_norm  b [h], [h], [h] -> b [h], b, b    h is whole: sharding it takes a decomposition
//
// A dimension of size 1 that broadcasts has no factor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/sharding/sharding.h"
#include "csrc/util/box.h"
#include "csrc/util/checked_vector.h"
#include "csrc/util/expr.h"

namespace spmd::rules {

struct Factor {
  int64_t size = 1;
  // If set, a call of this op cannot shard the factor; the op's decomposition, if it has one, can.
  bool whole = false;
  // How results that lack the factor combine when it is sharded: each shard computes a partial
  // result.
  ReduceKind reduce = ReduceKind::kSum;
  // The factor's shards must begin at multiples of this many indices (1: anywhere).
  int64_t granularity = 1;
};

// Factors of one dimension, major first. If empty, the dimension cannot be sharded.
using DimFactors = CheckedVector<int, 2>;
// One entry per dimension; empty for an absent operand.
using TensorFactors = std::vector<DimFactors>;

// An operand dimension of which a shard of the factor reads an interval that is a function of the
// shard, not the shard itself (convolution, pooling, pad). `begin` and `end` are expressions over
// start(r0,0) and size(r0,0), the shard of a dimension of `extent` indices that the factor's axes
// divide. Indices outside the operand read `fill`. The dimension lists the factor as usual; the
// window is what makes it legal to shard. With `order`, the interval is one of the dimension's
// indices in that order: those of a rotation of 4 by one are 3, 0, 1, 2.
struct Window {
  int operand = 0;
  int dim = 0;
  int factor = 0;
  int64_t extent = 0;
  Expr begin = 0;
  Expr end = 0;
  double fill = 0;
  std::vector<Interval> order;
};

struct OpFactors {
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;
  std::vector<TensorFactors> results;
  std::vector<Window> windows;
  // same[r]: shards of a factor that result r lacks compute identical copies of it, not partial
  // results. Empty means all false.
  std::vector<bool> same;

  bool SameInShards(int result) const { return !same.empty() && same[result]; }
  bool InOperand(int factor, int operand) const;
  bool InResult(int factor, int result) const;
  bool InAnyResult(int factor) const;
  bool InAnyOperand(int factor) const;
  // "m k, k n -> m n  {m=32, k=128, n=64}" with letters by number; whole factors in brackets.
  std::string ToString() const;
};

}  // namespace spmd::rules
