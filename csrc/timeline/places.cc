// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/places.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::timeline {
namespace {

using machine::Part;
using machine::Placement;

// A grid's sub-axes, gathered by the mesh axis that they are part of.
std::vector<Placement::Factors> AxesOf(const Grid& grid) {
  std::vector<Placement::Factors> axes;
  for (int i = 0; i < grid.num_axes(); ++i) {
    const SubAxis& axis = grid.axis(static_cast<AxisId>(i));
    const bool begins = i == 0 || axis.axis != grid.axis(static_cast<AxisId>(i - 1)).axis;
    if (begins) axes.emplace_back();
    axes.back().push_back(axis.size);
  }
  return axes;
}

bool InOrder(const std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

int Largest(const std::vector<GridPtr>& grids) {
  int largest = 0;
  for (size_t g = 1; g < grids.size(); ++g) {
    if (grids[g]->num_devices() > grids[largest]->num_devices()) largest = static_cast<int>(g);
  }
  return largest;
}

// The ids on the machine of a grid's devices. `order` is where device i of the mesh in order lies.
std::vector<int64_t> IdsOnMachine(const Grid& grid, const std::vector<int64_t>& order) {
  std::vector<int64_t> ids;
  for (int64_t id : grid.device_ids()) {
    ids.push_back(id < static_cast<int64_t>(order.size()) ? order[id] : id);
  }
  return ids;
}

std::vector<Part> Flat(const Placement& placement) {
  std::vector<Part> parts;
  for (const std::vector<Part>& axis : placement.axes()) {
    parts.insert(parts.end(), axis.begin(), axis.end());
  }
  return parts;
}

}  // namespace

absl::StatusOr<Places> Places::Of(const program::Program& program, const machine::System& system) {
  Places places;
  places.grids_ = program.grids;
  if (places.grids_.empty()) places.grids_.push_back(Grid::SingleDevice());
  places.largest_ = Largest(places.grids_);
  const Grid& main = *places.grids_[places.largest_];
  SPMD_ASSIGN_OR_RETURN(Placement chosen, Placement::Choose(system, AxesOf(main)));
  const bool in_order = InOrder(main.device_ids());
  std::vector<int64_t> order;
  if (in_order) order = chosen.DeviceOrder();
  for (size_t g = 0; g < places.grids_.size(); ++g) {
    const Grid& grid = *places.grids_[g];
    if (static_cast<int>(g) == places.largest_ && in_order) {
      places.placed_.push_back({chosen, Flat(chosen)});
      continue;
    }
    auto placement = Placement::OfDevices(system, AxesOf(grid), IdsOnMachine(grid, order));
    // An order of devices that follows no level is taken to be as good as the best one.
    if (!placement.ok()) placement = Placement::Choose(system, AxesOf(grid));
    if (!placement.ok()) return placement.status();
    std::vector<Part> parts = Flat(*placement);
    places.placed_.push_back({*std::move(placement), std::move(parts)});
  }
  return places;
}

machine::Routes Places::RoutesOf(int grid, absl::Span<const AxisId> axes) const {
  const Placed& placed = placed_[grid];
  std::vector<Part> parts;
  for (AxisId axis : axes) parts.push_back(placed.part_of[axis]);
  return placed.placement.RoutesOf(parts);
}

std::vector<std::string> Places::Describe() const {
  std::vector<std::string> lines;
  const Grid& grid = *grids_[largest_];
  int64_t size = 1;
  for (int i = 0; i < grid.num_axes(); ++i) {
    const SubAxis& axis = grid.axis(static_cast<AxisId>(i));
    size *= axis.size;
    const bool ends =
        i + 1 == grid.num_axes() || grid.axis(static_cast<AxisId>(i + 1)).axis != axis.axis;
    if (!ends) continue;
    lines.push_back(
        absl::StrCat(axis.axis, "=", size, ": ",
                     placed_[largest_].placement.ToString(static_cast<int>(lines.size()))));
    size = 1;
  }
  return lines;
}

}  // namespace spmd::timeline
