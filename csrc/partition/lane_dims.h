// SPDX-License-Identifier: Apache-2.0
// Lanes of a tensor, and what it is without them: sizes, shardings, reshapes. See join_lanes.h.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/dims.h"

namespace spmd::partition {

// A dimension of which each device has one index, or the major part of a dimension in which it has
// been merged with others:
//
//   f32[4,8,6] {x},{},{}     lanes of dimension 0, which were split from dimension 2, say
//   f32[32,6]  {x},{}        the same merged with dimension 1: `size` is 4
struct Lane {
  static constexpr int kEverywhere = -1;
  static constexpr int kSummed = -2;

  int dim = 0;
  // The dimension from which it was split. kEverywhere: all lanes hold the same. kSummed: the value
  // without lanes is their sum, or what else `reduce` says.
  int whole = 0;
  int64_t size = 0;  // of the part; 0: the dimension is nothing else
  ReduceKind reduce = ReduceKind::kSum;

  friend bool operator==(const Lane& a, const Lane& b) = default;
};
// Those of one dimension are listed major first.
using Lanes = absl::InlinedVector<Lane, 2>;

// Whether dimension `dim` is one of the lanes and nothing else.
bool IsLane(const Lanes& lanes, int dim);
// Whether all lanes were split from a dimension.
bool AreSplit(const Lanes& lanes);
// Whether the value without lanes is a sum over some of them, or the like.
bool HasSums(const Lanes& lanes);
// Whether the value without lanes is the same: they are the same lanes, and those of one dimension,
// or that were split from one, are in the same order.
bool AreSame(const Lanes& a, const Lanes& b);
// The number that dimension `dim`, which is more than a lane, has without lanes.
int NumberWithout(const Lanes& lanes, int dim);
// The sizes without lanes: of the other dimensions, each in full length.
Dims JoinedDims(const Dims& dims, const Lanes& lanes);
// The sharding without lanes that gives each device the same elements, or with Lane::kSummed the
// terms of their sum. nullopt if a device does not have exactly one index of each lane, or if its
// indices of a joined dimension would not be adjacent.
std::optional<Sharding> JoinedSharding(const Sharding& sharding, const Dims& dims,
                                       const Lanes& lanes, const Grid& grid);
// How a joined value becomes the one with lanes: it is reshaped to `apart`, its dimensions get the
// order `order`, and what was merged is merged.
struct Apart {
  Dims sizes;
  std::vector<int64_t> order;
  Sharding before, after;  // of `sizes`, and in their new order
};
// Requires: AreSplit(lanes), and JoinedSharding is not nullopt.
Apart TakeApart(const Sharding& sharding, const Dims& dims, const Lanes& lanes, const Grid& grid);
// How the value without the lanes `from` becomes the one without the lanes `to`, which are the same
// with other wholes: as in TakeApart. What stays together is one dimension.
// Requires: as TakeApart, of both.
Apart Regroup(const Sharding& sharding, const Dims& dims, const Lanes& from, const Lanes& to,
              const Grid& grid);
// `sharding` with its dimensions in the order `order`.
Sharding WithOrder(const Sharding& sharding, absl::Span<const int64_t> order);
// The lanes that a reshape from `from` to `to`, whose result is sharded, splits off: of the
// dimensions into which others are split or regrouped the first ones of which a device has one
// index.
Lanes SplitOff(const Dims& from, const Dims& to, const Sharding& sharding, const Grid& grid);
// True if a reshape that merges the lanes with the dimensions from which they were split keeps the
// order of elements: they lie directly before them, but for dimensions of size 1.
bool AreInPlace(const Dims& dims, const Lanes& lanes);
// The lanes such that what was split from a dimension of which nothing else is left (size 1) is a
// part of the next one, which is a view of the same. nullopt if there is none.
std::optional<Lanes> OfNextDims(const Lanes& lanes, const Dims& dims);
// The lanes after a reshape from `from` to `to`, such that the value without lanes is reshaped,
// too. What was split from a dimension of which nothing else is left is then a part of such a
// dimension or of the next one. Those that were merged with what they were split from are none any
// more. nullopt if there is no such form.
std::optional<Lanes> AfterReshape(const Dims& from, const Lanes& lanes, const Dims& to);
// The sizes that are not 1.
Dims WithoutOnes(const Dims& dims);
// `sharding`, of a tensor of sizes `from`, for one of sizes `to` that differs in where it has
// dimensions of size 1.
Sharding WithOnesOf(const Sharding& sharding, const Dims& from, const Dims& to);
// `sharding` without the dimensions that are lanes, which do not become part of others.
Sharding WithoutDims(const Sharding& sharding, const Lanes& gone);

}  // namespace spmd::partition
