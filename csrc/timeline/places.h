// SPDX-License-Identifier: Apache-2.0
// Where the grids of a program lie on a machine.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/machine/placement.h"
#include "csrc/program/program.h"

namespace spmd::timeline {

// The largest grid is placed where its order of devices is 0..n-1, which says nothing, as
// machine::Placement::Choose says; else where the user put it. The ids of the other grids are of
// the same devices.
class Places {
 public:
  // Errors: InvalidArgument if the largest grid does not fit the system.
  static absl::StatusOr<Places> Of(const program::Program& program, const machine::System& system);

  // What a collective over `axes` of grid `grid` goes through.
  machine::Routes RoutesOf(int grid, absl::Span<const AxisId> axes) const;
  // "fsdp=16: x 4 ring, y 4 ring", one for each axis of the largest grid.
  std::vector<std::string> Describe() const;
  // The ids on the machine of the devices of the largest grid, in its order.
  std::vector<int64_t> DeviceOrder() const { return placed_[largest_].placement.DeviceOrder(); }

 private:
  struct Placed {
    machine::Placement placement;
    std::vector<machine::Part> part_of;  // by sub-axis
  };

  std::vector<GridPtr> grids_;
  std::vector<Placed> placed_;  // by grid
  int largest_ = 0;
};

}  // namespace spmd::timeline
