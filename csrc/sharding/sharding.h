// SPDX-License-Identifier: Apache-2.0
// How a value is distributed, as a value type: per dimension the sub-axes and the chunk, the
// unreduced axes, and the manual axes.
//
// Text, with the grid's names:   {data},{model:0,model:1}      two dimensions
//                                {data chunk=6},{}             a chunk other than ⌈n/k⌉
//                                {?},{model,? chunk=6}         open dimensions: more axes may come
//                                {},{} unreduced(sum){data}    each device along data holds a term:
//                                                              one of the partial sums
//                                {},{} manual{x}               each device along x has its own
//                                value
//                                                              of these sizes: in a manual region
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/mesh/grid.h"

namespace spmd {

// How the partial results of an unreduced value, or of a reduced factor, combine. There is no kind
// for a mean, which is a sum divided by the global count.
enum class ReduceKind : uint8_t { kSum, kProd, kMax, kMin, kAnd, kOr };
absl::string_view ReduceKindName(ReduceKind kind);  // "sum", …
absl::StatusOr<ReduceKind> ParseReduceKind(absl::string_view name);

struct DimSharding {
  AxisList axes;      // major first
  int64_t chunk = 0;  // 0 means ⌈n/k⌉; see Layout
  bool open = false;  // propagation may append axes

  friend bool operator==(const DimSharding& a, const DimSharding& b) {
    return a.axes == b.axes && a.chunk == b.chunk && a.open == b.open;
  }
  template <typename H>
  friend H AbslHashValue(H h, const DimSharding& d) {
    return H::combine(std::move(h), d.axes, d.chunk, d.open);
  }
};

// Invariants: no sub-axis occurs twice among dims, unreduced and manual axes; chunk != 0 only in a
// dimension that has axes; `unreduced` and `manual` are sorted.
// Thread safety: a value.
struct Sharding {
  absl::InlinedVector<DimSharding, 5> dims;
  AxisList unreduced;
  ReduceKind reduce_kind = ReduceKind::kSum;  // of the unreduced axes; kSum when there are none
  AxisList manual;

  // A replicated sharding whose dimensions are all closed, or all open.
  static Sharding Replicated(int rank);
  static Sharding Open(int rank);

  int rank() const { return static_cast<int>(dims.size()); }
  AxisMask DimAxes() const;  // all axes that shard a dimension
  AxisMask UnreducedAxes() const;
  AxisMask ManualAxes() const { return MaskOf(manual); }
  AxisMask UsedAxes() const { return DimAxes() | UnreducedAxes() | ManualAxes(); }
  bool IsReplicated() const { return UsedAxes() == 0; }
  bool IsUnreduced() const { return !unreduced.empty(); }

  // This sharding without its unreduced axes; this sharding with every dimension closed.
  Sharding Reduced() const;
  Sharding Closed() const;
  // True if everything but `open` is equal.
  bool SamePlacement(const Sharding& other) const;

  std::string ToString(const Grid& grid) const;
  // Errors: InvalidArgument with the offending text; a repeated axis.
  static absl::StatusOr<Sharding> Parse(absl::string_view text, const Grid& grid);
  // Leaves the text that follows the sharding.
  static absl::StatusOr<Sharding> Parse(Scanner& in, const Grid& grid);

  friend bool operator==(const Sharding& a, const Sharding& b) {
    return a.dims == b.dims && a.unreduced == b.unreduced && a.reduce_kind == b.reduce_kind &&
           a.manual == b.manual;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Sharding& s) {
    return H::combine(std::move(h), s.dims, s.unreduced, s.reduce_kind, s.manual);
  }
};

}  // namespace spmd
