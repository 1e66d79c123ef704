// SPDX-License-Identifier: Apache-2.0
// What the verifier lets through, checked on every device: the move must be able to make each
// result tile from what the devices of its group hold.
#include "csrc/program/move_verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "csrc/program/program.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::program {
namespace {

using Points = std::set<std::vector<int64_t>>;

Points PointsOf(const Box& box) {
  Points points = {{}};
  for (const Interval& interval : box) {
    Points longer;
    for (const std::vector<int64_t>& point : points) {
      for (int64_t i = interval.begin; i < interval.end; ++i) {
        std::vector<int64_t> extended = point;
        extended.push_back(i);
        longer.insert(extended);
      }
    }
    points = std::move(longer);
  }
  return points;
}

bool Includes(const Points& all, const Points& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

struct Case {
  Program program;
  Instruction move;
  const Value& from() const { return program.values[0]; }
  const Value& to() const { return program.values[1]; }
};

// Is the move right on every device?
class Oracle {
 public:
  explicit Oracle(const Case& c)
      : c_(c),
        grid_(*c.program.grids[0]),
        from_(c.program.LayoutOf(0)),
        to_(c.program.LayoutOf(1)) {}

  bool Right() const {
    if (!UnreducedAxesFit()) return false;
    if (c_.move.code == OpCode::kPermute) return SameBoxes();
    for (int64_t p = 0; p < grid_.num_devices(); ++p) {
      if (!RightAt(p)) return false;
    }
    return true;
  }

 private:
  bool UnreducedAxesFit() const {
    const AxisMask moved = MaskOf(c_.move.axes);
    const AxisMask before = from_.sharding().UnreducedAxes(),
                   after = to_.sharding().UnreducedAxes();
    const bool same_kind = from_.sharding().reduce_kind == to_.sharding().reduce_kind;
    switch (c_.move.code) {
      case OpCode::kAllReduce:
      case OpCode::kReduceScatter:
        return (before & moved) == moved && after == (before & ~moved) && (after == 0 || same_kind);
      case OpCode::kTerm:
        return (before & moved) == 0 && after == (before | moved) && (before == 0 || same_kind);
      case OpCode::kPermute:
        return grid_.SizeOfMask(before) == grid_.SizeOfMask(after) && same_kind;
      default:
        return before == after && same_kind;
    }
  }

  bool RightAt(int64_t p) const {
    const Points needed = PointsOf(to_.BoxAt(p));
    const Points held = PointsOf(from_.BoxAt(p));
    Points in_group;
    for (int64_t i = 0; i < grid_.size(c_.move.axes); ++i) {
      const Points more = PointsOf(from_.BoxAt(grid_.WithCoordinate(p, c_.move.axes, i)));
      in_group.insert(more.begin(), more.end());
    }
    switch (c_.move.code) {
      case OpCode::kSlice:
        return Includes(held, needed);
      case OpCode::kAllGather:
        return needed == in_group;
      case OpCode::kAllToAll:
        return Includes(in_group, needed);
      case OpCode::kAllReduce:
      case OpCode::kTerm:
        return needed == held;
      case OpCode::kReduceScatter:
        return Includes(held, needed);
      default:
        return true;
    }
  }

  bool SameBoxes() const {
    std::multiset<Points> before, after;
    for (int64_t p = 0; p < grid_.num_devices(); ++p) {
      before.insert(PointsOf(from_.BoxAt(p)));
      after.insert(PointsOf(to_.BoxAt(p)));
    }
    return before == after;
  }

  const Case& c_;
  const Grid& grid_;
  const Layout from_, to_;
};

Case CaseOf(const GridPtr& grid, const Dims& dims, const Sharding& from, const Sharding& to,
            OpCode code, AxisList axes, int dim, int to_dim) {
  Case c;
  c.program.grids = {grid};
  c.program.grid_names = {"m"};
  c.program.AddValue({{DType::kF32, dims}, 0, from.Closed(), {}, "a"});
  c.program.AddValue({{DType::kF32, dims}, 0, to.Closed(), {}, "b"});
  c.move.code = code;
  c.move.operands = {0};
  c.move.results = {1};
  c.move.axes = std::move(axes);
  c.move.dim = dim;
  c.move.to_dim = to_dim;
  return c;
}

std::string Shown(const Case& c) {
  const Grid& grid = *c.program.grids[0];
  return std::string(OpCodeName(c.move.code)) + " " + c.from().type.ToString() + " " +
         c.from().sharding.ToString(grid) + " to " + c.to().sharding.ToString(grid) + " axes " +
         grid.AxesToString(c.move.axes);
}

int RandomIndex(std::mt19937& rng, size_t n) {
  return static_cast<int>(rng() % std::max<size_t>(n, 1));
}

// Changes the sharding as a move of this kind would, or not quite.
Case RandomCase(std::mt19937& rng) {
  const GridPtr grid = RandomGrid(rng);
  Dims dims(1 + rng() % 2);
  for (int64_t& n : dims) n = static_cast<int64_t>(rng() % 9);
  const Sharding from = RandomSharding(rng, *grid, dims);
  Sharding to = from;
  const OpCode codes[] = {OpCode::kSlice,   OpCode::kAllGather, OpCode::kAllToAll,
                          OpCode::kPermute, OpCode::kAllReduce, OpCode::kReduceScatter,
                          OpCode::kTerm};
  const OpCode code = codes[rng() % 7];
  const int dim = RandomIndex(rng, dims.size());
  const int to_dim = RandomIndex(rng, dims.size());
  AxisList axes;
  const bool takes = code == OpCode::kAllGather || code == OpCode::kAllToAll;
  if (takes) {
    AxisList& have = to.dims[dim].axes;
    const size_t keep = rng() % (have.size() + 1);
    axes.assign(have.begin() + keep, have.end());
    have.resize(keep);
  } else if (code == OpCode::kAllReduce || code == OpCode::kReduceScatter) {
    for (size_t n = to.unreduced.size(); n > 0 && rng() % 4 != 0; --n) {
      const auto it = to.unreduced.begin() + RandomIndex(rng, to.unreduced.size());
      axes.push_back(*it);
      to.unreduced.erase(it);
    }
  } else {
    for (int a = 0; a < grid->num_axes(); ++a) {
      if (!(from.UsedAxes() & MaskOf(static_cast<AxisId>(a))) && rng() % 2) {
        axes.push_back(static_cast<AxisId>(a));
      }
    }
  }
  if (to.unreduced.empty()) to.reduce_kind = ReduceKind::kSum;
  const bool appends =
      code == OpCode::kSlice || code == OpCode::kReduceScatter || code == OpCode::kAllToAll;
  const int target = code == OpCode::kAllToAll ? to_dim : dim;
  if (appends) to.dims[target].axes.insert(to.dims[target].axes.end(), axes.begin(), axes.end());
  if (code == OpCode::kTerm) {
    to.unreduced.insert(to.unreduced.end(), axes.begin(), axes.end());
    std::sort(to.unreduced.begin(), to.unreduced.end());
    if (rng() % 3 == 0 && !to.unreduced.empty()) to.reduce_kind = ReduceKind::kMax;
  }
  if (code == OpCode::kPermute && rng() % 2) std::swap(to.dims.front().axes, to.dims.back().axes);
  for (size_t d = 0; d < dims.size(); ++d) {
    DimSharding& s = to.dims[d];
    if (s.axes == from.dims[d].axes && rng() % 4 != 0) continue;
    s.chunk = 0;
    if (!s.axes.empty() && rng() % 2) s.chunk = RandomChunk(rng, dims[d], grid->size(s.axes));
  }
  const bool has_dim = appends || code == OpCode::kAllGather;
  return CaseOf(grid, dims, from, to, code, axes, has_dim ? dim : -1,
                code == OpCode::kAllToAll ? to_dim : -1);
}

TEST(MoveVerifierTest, WhatItAcceptsIsRightOnEveryDevice) {
  std::mt19937 rng(51);
  int accepted[10] = {};
  for (int i = 0; i < 20000; ++i) {
    const Case c = RandomCase(rng);
    const Layout from = c.program.LayoutOf(0);
    if (!VerifyMove(c.program, c.move).ok()) continue;
    ++accepted[static_cast<int>(c.move.code)];
    EXPECT_TRUE(Oracle(c).Right()) << Shown(c);
  }
  for (OpCode code : {OpCode::kSlice, OpCode::kAllGather, OpCode::kAllToAll, OpCode::kPermute,
                      OpCode::kAllReduce, OpCode::kReduceScatter, OpCode::kTerm}) {
    EXPECT_GT(accepted[static_cast<int>(code)], 100) << OpCodeName(code);
  }
}

// Gathering the minor axes of a dimension multiplies its chunk; slicing divides it: both ways round
// is always legal.
TEST(MoveVerifierTest, AcceptsGatherAndItsInverse) {
  std::mt19937 rng(52);
  for (int i = 0; i < 2000; ++i) {
    const GridPtr grid = RandomGrid(rng);
    const Dims dims = {static_cast<int64_t>(rng() % 20)};
    const Sharding cut = RandomSharding(rng, *grid, dims);
    const AxisList& have = cut.dims[0].axes;
    if (have.empty()) continue;
    const size_t keep = rng() % have.size();
    Sharding gathered = cut;
    gathered.dims[0].axes.resize(keep);
    const AxisList axes(have.begin() + keep, have.end());
    const int64_t chunk = Layout(grid, cut, dims).chunk(0) * grid->size(axes);
    gathered.dims[0].chunk = keep == 0 ? 0 : chunk;
    const Case gather = CaseOf(grid, dims, cut, gathered, OpCode::kAllGather, axes, 0, -1);
    EXPECT_TRUE(VerifyMove(gather.program, gather.move).ok())
        << Shown(gather) << VerifyMove(gather.program, gather.move);
    const Case slice = CaseOf(grid, dims, gathered, cut, OpCode::kSlice, axes, 0, -1);
    EXPECT_TRUE(VerifyMove(slice.program, slice.move).ok())
        << Shown(slice) << VerifyMove(slice.program, slice.move);
  }
}

}  // namespace
}  // namespace spmd::program
