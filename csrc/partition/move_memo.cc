// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/move_memo.h"

#include "csrc/cost/move.h"

namespace spmd::partition {
namespace {

bool HaveSamePrices(const Grid& a, const Grid& b) {
  if (a != b) return false;
  for (int i = 0; i < a.num_axes(); ++i) {
    const auto axis = static_cast<AxisId>(i);
    if (a.axis(axis).bandwidth != b.axis(axis).bandwidth) return false;
  }
  return true;
}

}  // namespace

int MoveMemo::NumberOf(const GridPtr& grid) {
  for (const Known& known : grids_) {
    if (known.grid == grid) return known.number;
  }
  int number = static_cast<int>(grids_.size());
  for (const Known& known : grids_) {
    if (HaveSamePrices(*known.grid, *grid)) {
      number = known.number;
      break;
    }
  }
  grids_.push_back({grid, number});
  return number;
}

double MoveMemo::Seconds(const TensorType& type, const GridPtr& grid, const Sharding& from,
                         const Sharding& to) {
  const int number = NumberOf(grid);
  auto it = moves_.find(MoveRef(type, number, from, to));
  if (it == moves_.end()) {
    const double seconds = cost::PlanMove(type, *grid, from, to, prices_).seconds;
    it = moves_.emplace(Move(type, number, from, to), seconds).first;
  }
  return it->second;
}

}  // namespace spmd::partition
