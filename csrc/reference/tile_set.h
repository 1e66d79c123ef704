// SPDX-License-Identifier: Apache-2.0
// The tiles of one value of a program, as the reference interpreter holds them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/program/program.h"
#include "csrc/reference/interpreter.h"

namespace spmd::reference {

// A global value as its terms (partial results) along unreduced axes, and as each device's own
// value along manual axes: terms[t] is the one at the coordinates t along `axes`, major first, the
// manual axes in front. One term if there are no axes.
struct Terms {
  const Grid* grid = nullptr;  // of the axes
  AxisList axes;
  int64_t own = 1;  // the number of coordinates along the manual axes
  ReduceKind kind = ReduceKind::kSum;
  std::vector<Literal> terms;
};

Terms TermsOf(Literal whole);
// The value: all terms combined. Where devices have their own, these are stacked along a new first
// dimension.
Literal Reduced(const Terms& terms);

// The literals of several devices along a new first dimension; that of one as it is.
Literal Stacked(std::vector<Literal> own);

class TileSet {
 public:
  TileSet(const program::Program& program, program::ValueId id);

  const TensorType& type() const { return value_->type; }
  const Layout& layout() const { return layout_; }
  const Box& BoxAt(int64_t position) const { return boxes_[layout_.TileAt(position)]; }
  const Literal& tile(int64_t tile) const { return tiles_[tile]; }
  const Literal& TileAt(int64_t position) const { return tiles_[layout_.TileAt(position)]; }
  void Set(int64_t tile, Literal literal) { tiles_[tile] = std::move(literal); }

  // The global value with its terms.
  // Errors: Internal where an element is in no tile.
  absl::StatusOr<Terms> PutTogether() const;

  // Sets every tile from `source`. Along an axis on which only `source` is unreduced, its terms are
  // reduced; along one on which only this value is unreduced, coordinate 0 gets the term and the
  // others the identity. Elements outside the value are `fill`.
  void CutFrom(const Terms& source, double fill);

 private:
  Literal TermFor(const Terms& source, int64_t position) const;

  const program::Value* value_;
  Layout layout_;
  std::vector<Box> boxes_;  // by tile, windows included
  std::vector<Literal> tiles_;
};

}  // namespace spmd::reference
