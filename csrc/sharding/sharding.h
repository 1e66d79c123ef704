// SPDX-License-Identifier: Apache-2.0
// How a value is cut, as a value: per dimension the sub-axes and the chunk; the unreduced axes.
//
// Text, with the grid's names:   {data},{model:0,model:1}      two dimensions
//                                {data chunk=6},{}             a chunk other than ⌈n/k⌉
//                                {?},{model,? chunk=6}         open dimensions: more axes may come
//                                {},{} unreduced(sum){data}    each device along data holds a term
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/mesh/grid.h"

namespace spmd {

// The way terms of an unreduced value, or of a reduced factor, combine. Mean is not a kind: it is a
// sum and the global count.
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

// Invariants: no sub-axis occurs twice among dims and unreduced axes. chunk != 0 only where axes
// are. `unreduced` is sorted.
// Thread safety: a value.
struct Sharding {
  absl::InlinedVector<DimSharding, 5> dims;
  AxisList unreduced;
  ReduceKind reduce_kind = ReduceKind::kSum;  // of the unreduced axes; kSum when there are none

  // Not cut, closed (or open) in every dimension.
  static Sharding Replicated(int rank);
  static Sharding Open(int rank);

  int rank() const { return static_cast<int>(dims.size()); }
  AxisMask DimAxes() const;  // all axes that cut a dimension
  AxisMask UnreducedAxes() const;
  AxisMask UsedAxes() const { return DimAxes() | UnreducedAxes(); }
  bool IsReplicated() const { return UsedAxes() == 0; }
  bool IsUnreduced() const { return !unreduced.empty(); }

  // The same without unreduced axes; with every dimension closed.
  Sharding Reduced() const;
  Sharding Closed() const;
  // Equal placement: compares everything but `open`.
  bool SamePlacement(const Sharding& other) const;

  std::string ToString(const Grid& grid) const;
  // Errors: InvalidArgument with the offending text; a repeated axis.
  static absl::StatusOr<Sharding> Parse(absl::string_view text, const Grid& grid);
  static absl::StatusOr<Sharding> Parse(Scanner& in, const Grid& grid);  // takes what is its own

  friend bool operator==(const Sharding& a, const Sharding& b) {
    return a.dims == b.dims && a.unreduced == b.unreduced && a.reduce_kind == b.reduce_kind;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Sharding& s) {
    return H::combine(std::move(h), s.dims, s.unreduced, s.reduce_kind);
  }
};

}  // namespace spmd
