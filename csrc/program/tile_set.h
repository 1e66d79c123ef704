// SPDX-License-Identifier: Apache-2.0
// The tiles of one value of a program, as the reference interpreter holds them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/interpreter.h"
#include "csrc/program/program.h"

namespace spmd::program {

// A whole value as its terms along unreduced axes: term t, numbered by the coordinates along `axes`
// (major first), is terms[t]. One term where there are no axes.
struct Terms {
  const Grid* grid = nullptr;  // of the axes
  AxisList axes;
  ReduceKind kind = ReduceKind::kSum;
  std::vector<ir::Literal> terms;
};

Terms TermsOf(ir::Literal whole);
// What the terms stand for.
ir::Literal Reduced(const Terms& terms);

class TileSet {
 public:
  TileSet(const Program& program, ValueId id);

  const TensorType& type() const { return value_->type; }
  const Layout& layout() const { return layout_; }
  const Box& BoxAt(int64_t position) const { return boxes_[layout_.TileAt(position)]; }
  const ir::Literal& tile(int64_t tile) const { return tiles_[tile]; }
  const ir::Literal& TileAt(int64_t position) const { return tiles_[layout_.TileAt(position)]; }
  void Set(int64_t tile, ir::Literal literal) { tiles_[tile] = std::move(literal); }

  // The value with its terms. Errors: Internal where an element is in no tile.
  absl::StatusOr<Terms> PutTogether() const;

  // Makes every tile from a value: along an axis on which only the source is unreduced its terms
  // are reduced, along one on which only this value is, coordinate 0 has the term and the others
  // the identity. Elements outside the value are `fill`.
  void CutFrom(const Terms& source, double fill);

 private:
  ir::Literal TermFor(const Terms& source, int64_t position) const;

  const Value* value_;
  Layout layout_;
  std::vector<Box> boxes_;  // by tile, windows included
  std::vector<ir::Literal> tiles_;
};

}  // namespace spmd::program
