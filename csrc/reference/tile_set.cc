// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/tile_set.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spmd::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Identity(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kOr:
      return 0;
    case ReduceKind::kProd:
    case ReduceKind::kAnd:
      return 1;
    case ReduceKind::kMax:
      return -kInfinity;
    case ReduceKind::kMin:
      return kInfinity;
  }
  return 0;
}

double Combine(ReduceKind kind, double a, double b) {
  switch (kind) {
    case ReduceKind::kSum:
      return a + b;
    case ReduceKind::kProd:
      return a * b;
    case ReduceKind::kMax:
      return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case ReduceKind::kMin:
      return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case ReduceKind::kAnd:
      return a != 0 && b != 0;
    case ReduceKind::kOr:
      return a != 0 || b != 0;
  }
  return 0;
}

void CombineInto(Literal& sum, const Literal& term, ReduceKind kind) {
  for (size_t i = 0; i < sum.data.size(); ++i) {
    sum.data[i] = RoundTo(sum.type.dtype, Combine(kind, sum.data[i], term.data[i]));
  }
  // Complex numbers can only be summed.
  for (size_t i = 0; i < sum.imaginary.size(); ++i) {
    sum.imaginary[i] = RoundTo(sum.type.dtype, sum.imaginary[i] + term.imaginary[i]);
  }
}

Literal Filled(const TensorType& type, double value) {
  Literal filled{type, std::vector<double>(type.NumElements(), RoundTo(type.dtype, value))};
  if (IsComplex(type.dtype)) filled.imaginary.resize(filled.data.size());
  return filled;
}

// Copies element `from` of `source` to element `to` of `target`.
void CopyElement(const Literal& source, int64_t from, Literal& target, int64_t to) {
  target.data[to] = source.data[from];
  if (!target.imaginary.empty()) target.imaginary[to] = source.imaginary[from];
}

// Calls visit(index in the box, index in the value or -1 if outside) for every element of a box
// with these windows.
template <typename Visit>
void ForBox(const Box& box, absl::Span<const program::WindowDim> windows,
            absl::Span<const int64_t> dims, const Visit& visit) {
  for (int64_t i = 0, count = NumElements(box); i < count; ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = box.size(); d-- > 0;) {
      int64_t index = box[d].begin + rest % box[d].size();
      for (const program::WindowDim& window : windows) {
        if (window.dim != static_cast<int>(d)) continue;
        index = program::InOrder(window.order, {index, index + 1})[0].begin;
      }
      rest /= box[d].size();
      if (index < 0 || index >= dims[d]) at = -1;
      if (at >= 0) at += index * stride;
      stride *= dims[d];
    }
    visit(i, at);
  }
}

bool Has(const AxisList& axes, AxisId axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

Terms TermsOf(Literal whole) {
  Terms terms;
  terms.terms.push_back(std::move(whole));
  return terms;
}

Literal Reduced(const Terms& terms) {
  const size_t count = terms.terms.size() / terms.own;
  std::vector<Literal> sums;
  for (size_t t = 0; t < terms.terms.size(); ++t) {
    if (t % count == 0) {
      sums.push_back(terms.terms[t]);
    } else {
      CombineInto(sums.back(), terms.terms[t], terms.kind);
    }
  }
  return Stacked(std::move(sums));
}

Literal Stacked(std::vector<Literal> own) {
  if (own.size() == 1) return std::move(own[0]);
  Literal all{own[0].type, {}};
  all.type.dims.insert(all.type.dims.begin(), static_cast<int64_t>(own.size()));
  for (const Literal& literal : own) {
    all.data.insert(all.data.end(), literal.data.begin(), literal.data.end());
    all.imaginary.insert(all.imaginary.end(), literal.imaginary.begin(), literal.imaginary.end());
  }
  return all;
}

TileSet::TileSet(const program::Program& program, program::ValueId id)
    : value_(&program.values[id]), layout_(program.LayoutOf(id)) {
  for (int64_t tile = 0; tile < layout_.num_tiles(); ++tile) {
    boxes_.push_back(program.TileBox(id, tile));
  }
  tiles_.resize(boxes_.size());
}

absl::StatusOr<Terms> TileSet::PutTogether() const {
  Terms out;
  out.grid = layout_.grid().get();
  const Sharding& sharding = value_->sharding;
  out.axes = sharding.manual;
  out.axes.insert(out.axes.end(), sharding.unreduced.begin(), sharding.unreduced.end());
  out.own = out.grid->size(sharding.manual);
  const int64_t tiles_of_each = layout_.num_tiles() / out.own;
  const int64_t terms_of_each = out.grid->size(sharding.unreduced);
  out.kind = value_->sharding.reduce_kind;
  const int64_t count = out.grid->size(out.axes);
  out.terms.resize(count, Filled(type(), 0));
  std::vector<std::vector<bool>> held(count, std::vector<bool>(type().NumElements(), false));
  for (int64_t tile = 0; tile < layout_.num_tiles(); ++tile) {
    const int64_t term = tile / tiles_of_each * terms_of_each + layout_.TermOfTile(tile);
    ForBox(boxes_[tile], value_->windows, type().dims, [&](int64_t place, int64_t index) {
      if (index < 0 || held[term][index]) return;
      held[term][index] = true;
      CopyElement(tiles_[tile], place, out.terms[term], index);
    });
  }
  for (const std::vector<bool>& elements : held) {
    const auto hole = std::find(elements.begin(), elements.end(), false);
    if (hole != elements.end()) {
      return absl::InternalError(absl::StrCat("element ", hole - elements.begin(), " of '%",
                                              value_->name, "' is in no tile"));
    }
  }
  return out;
}

Literal TileSet::TermFor(const Terms& source, int64_t position) const {
  const AxisList& own = value_->sharding.unreduced;
  const bool same_grid = source.axes.empty() || *source.grid == *layout_.grid();
  for (AxisId axis : own) {
    const bool shared = same_grid && Has(source.axes, axis);
    if (!shared && layout_.grid()->Coordinate(position, axis) != 0) {
      return Filled(type(), Identity(value_->sharding.reduce_kind));
    }
  }
  // Adds, in order, the source's terms whose coordinates along the shared axes are this position's.
  std::optional<Literal> sum;
  for (size_t t = 0; t < source.terms.size(); ++t) {
    bool wanted = true;
    int64_t rest = static_cast<int64_t>(t);
    for (size_t a = source.axes.size(); a-- > 0;) {
      const AxisId axis = source.axes[a];
      const int64_t coordinate = rest % source.grid->size(axis);
      rest /= source.grid->size(axis);
      if (same_grid && (Has(own, axis) || Has(value_->sharding.manual, axis))) {
        wanted = wanted && layout_.grid()->Coordinate(position, axis) == coordinate;
      }
    }
    if (!wanted) continue;
    if (!sum.has_value()) {
      sum = source.terms[t];
    } else {
      CombineInto(*sum, source.terms[t], source.kind);
    }
  }
  return *std::move(sum);
}

void TileSet::CutFrom(const Terms& source, double fill) {
  for (int64_t tile = 0; tile < layout_.num_tiles(); ++tile) {
    const Literal term = TermFor(source, layout_.FirstPositionOf(tile));
    Literal& out = tiles_[tile];
    out = Filled({type().dtype, BoxDims(boxes_[tile])}, fill);
    ForBox(boxes_[tile], value_->windows, type().dims, [&](int64_t place, int64_t index) {
      if (index >= 0) CopyElement(term, index, out, place);
    });
  }
}

}  // namespace spmd::reference
