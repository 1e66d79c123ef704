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

// A dimension of which each device has one index.
struct Lane {
  static constexpr int kEverywhere = -1;

  int dim = 0;
  int whole = 0;  // the dimension from which it was split; kEverywhere: all lanes hold the same
};
// Those of one dimension are listed major first.
using Lanes = absl::InlinedVector<Lane, 2>;

// Whether dimension `dim` is one of the lanes.
bool IsLane(const Lanes& lanes, int dim);
// The number that dimension `dim`, which is no lane, has without lanes.
int NumberWithout(const Lanes& lanes, int dim);
// The sizes without lanes: of the other dimensions, each in full length.
Dims JoinedDims(const Dims& dims, const Lanes& lanes);
// The sharding without lanes that gives each device the same elements. nullopt if a device does not
// have exactly one index of each lane, or if its indices of a joined dimension would not be
// adjacent.
std::optional<Sharding> JoinedSharding(const Sharding& sharding, const Dims& dims,
                                       const Lanes& lanes, const Grid& grid);
// `sharding` with its dimensions in the order `order`.
Sharding WithOrder(const Sharding& sharding, absl::Span<const int64_t> order);
// Where a reshape from `from` to `to` only splits dimensions, and adds or removes some of size 1:
// all parts but the last of each. Empty if it does anything else.
Lanes SplitOff(const Dims& from, const Dims& to);
// True if a reshape that merges the lanes with the dimensions from which they were split keeps the
// order of elements: they lie directly before them, but for dimensions of size 1.
bool AreInPlace(const Dims& dims, const Lanes& lanes);
// The sizes that are not 1.
Dims WithoutOnes(const Dims& dims);
// Where a reshape from `from` to `to` only adds and removes dimensions of size 1: by dimension of
// `from`, that of `to`, or -1. Empty if it does anything else.
std::vector<int> Moved(const Dims& from, const Dims& to);
// `sharding` without the dimensions that are lanes, which do not become part of others.
Sharding WithoutDims(const Sharding& sharding, const Lanes& gone);

}  // namespace spmd::partition
