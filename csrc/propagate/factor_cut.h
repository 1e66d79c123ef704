// SPDX-License-Identifier: Apache-2.0
// Between dimension shardings and factor shardings.
//
// A dimension that is one factor is cut as the factor is. A compound dimension (a b), a major, is
// an interval per shard only if the cut goes through its factors major first and each factor but
// the last cut one is cut completely:
//
//   (a=4 b=6) by 8     a by 4, b by 2       shards of 3 indices
//   (a=5 b=64) by 8    a by 8 (uneven)      chunk 64: trailing shards are empty
//   (a=6 b=64) by 4    a by 2, stop         6 is not 4 rows; the second axis cannot be said
//
// A dimension that is read through a window, of another size than the factor, keeps the boundaries
// of the factor's shards where that leaves its own about as even
// (docs/design/0009-uneven-shards.md).
#pragma once

#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "csrc/rules/factors.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/dims.h"

namespace spmd::propagate {

// How one factor is cut. chunk 0: ⌈size/shards⌉.
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
// By factor number.
using Cut = absl::InlinedVector<FactorShard, 4>;

// What the sharding of one tensor says about the op's factors: axes of each dimension dealt to the
// dimension's factors, as far as the factors can take them.
Cut CutOf(const rules::OpFactors& factors, const rules::TensorFactors& tensor, const Dims& dims,
          const Sharding& sharding, const Grid& grid);

// The sharding that a cut gives to a tensor (no unreduced axes). nullopt when the cut of a compound
// dimension is not an interval per shard, or an axis would cut two dimensions.
std::optional<Sharding> ShardingUnder(const rules::OpFactors& factors,
                                      const rules::TensorFactors& tensor, const Dims& dims,
                                      const Cut& cut, const Grid& grid);

}  // namespace spmd::propagate
