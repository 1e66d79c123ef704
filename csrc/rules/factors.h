// SPDX-License-Identifier: Apache-2.0
// Factors: the independent indices of one op call, and which dimension of which tensor each runs
// over. All that propagation, choice, cost and partition know of an op is read off here.
//
//   mm        m k, k n -> m n           factors m, k, n;  k is reduced
//   view      [4,6] -> [24]             (a b) compound:   operand dims {a},{b}; result dim {a,b}
//   layer_norm  b [h], [h], [h] -> b [h], b, b    h is whole: cutting it needs a decomposition
//
// A dimension of size 1 that broadcasts has no factor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/sharding/sharding.h"
#include "csrc/util/checked_vector.h"
#include "csrc/util/expr.h"

namespace spmd::rules {

struct Factor {
  int64_t size = 1;
  // May not be cut in a call of this op; the op's decomposition, if it has one, may.
  bool whole = false;
  // How results that lack the factor combine when it is cut: each shard computes a term.
  ReduceKind reduce = ReduceKind::kSum;
  // Cut only in shards whose boundaries are multiples of this many indices (1: anywhere).
  int64_t granularity = 1;
};

// Factors of one dimension, major first. Empty: the dimension is not cut by any factor.
using DimFactors = CheckedVector<int, 2>;
// One entry per dimension; empty for an absent operand.
using TensorFactors = std::vector<DimFactors>;

// An operand dimension whose needed interval is not the factor's own shard but a function of it
// (convolution, pooling, pad). `begin` and `end` speak of start(r0,0) and size(r0,0): the shard of
// a dimension of `extent` indices that the factor's axes cut. Indices outside the operand read
// `fill`. A window makes the factor legal to cut; the dimension lists the factor as usual.
struct Window {
  int operand = 0;
  int dim = 0;
  int factor = 0;
  int64_t extent = 0;
  Expr begin = 0;
  Expr end = 0;
  double fill = 0;
};

struct OpFactors {
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;
  std::vector<TensorFactors> results;
  std::vector<Window> windows;
  // By result: whether shards of a factor that it lacks compute the same of it, not terms. Empty:
  // none does.
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
