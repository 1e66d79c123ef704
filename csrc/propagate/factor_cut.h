// SPDX-License-Identifier: Apache-2.0
// Translation between the shardings of a tensor's dimensions and the shardings of an op's factors.
//
// A dimension that is one factor is sharded as the factor is. A compound dimension (a b), a major,
// has one interval per shard only if its axes go to its factors major first, and each factor but
// the last sharded one is split down to single indices:
//
//   (a=4 b=6) over 8     a over 4, b over 2     shards of 3 indices
//   (a=5 b=64) over 8    a over 8 (uneven)      chunk 64: trailing shards are empty
//   (a=6 b=64) over 4    a over 2, stop         4 does not divide 6: the second axis is dropped
//
// A dimension that is read through a window has another size than its factor. It keeps the
// boundaries of the factor's shards if its own shards stay about as even
// (docs/design/0009-uneven-shards.md).
#pragma once

#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/factors.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/dims.h"

namespace spmd::propagate {

// How one factor is sharded. Chunk 0 means ⌈size/shards⌉.
struct FactorShard {
  AxisList axes;
  int64_t chunk = 0;
  friend bool operator==(const FactorShard& a, const FactorShard& b) {
    return a.axes == b.axes && a.chunk == b.chunk;
  }
  template <typename H>
  friend H AbslHashValue(H h, const FactorShard& s) {
    return H::combine(std::move(h), s.axes, s.chunk);
  }
};
// One entry per factor of an op.
using Cut = absl::InlinedVector<FactorShard, 4>;

// What the sharding of one tensor says about the op's factors: the axes of each dimension go to the
// dimension's factors, as far as the factors can take them.
Cut CutOf(const rules::OpFactors& factors, const rules::TensorFactors& tensor, const Dims& dims,
          const Sharding& sharding, const Grid& grid);

// The sharding (without unreduced axes) that `cut` gives to a tensor. nullopt if a compound
// dimension would not have one interval per shard, or if one axis would shard two dimensions.
std::optional<Sharding> ShardingUnder(const rules::OpFactors& factors,
                                      const rules::TensorFactors& tensor, const Dims& dims,
                                      const Cut& cut, const Grid& grid);

// Adds to the cut of a border of a manual region what the region's specs shard, and nothing to that
// of another node.
void CutBorder(const ir::Node& node, const rules::OpFactors& factors, Cut& cut);

}  // namespace spmd::propagate
