// SPDX-License-Identifier: Apache-2.0
// The border of a manual region: a node that turns a global value into each device's own local one,
// or the reverse. What a node does at a border is in its attributes.
//
//   %1: f32[2,4] = spmd::to_local(%x, size=[2,4], enter="{x},{}", mesh="m")
//   %2: f32[2,4] = aten::sin(%1)                 on each device along x, on its own [2,4]
//   %3: f32[8,4] = spmd::to_global(%2, size=[8,4], leave="{x},{}", mesh="m")
//
// `enter`: a device's local value is its tile of the operand in this sharding. Along the axes
// behind "manual" it is all of it: enter="{},{} manual{x}" gives each device along x the whole
// operand. `leave`: the local values are the tiles of the result in this sharding. Its unreduced
// axes add them up: leave="{},{} unreduced(sum){x}". Each undoes the other, and each is the other's
// transpose.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/ir/attributes.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::ir {

struct Border {
  bool enters = false;
  int grid = 0;
  Sharding sharding;  // of the global value

  AxisMask axes() const { return sharding.UsedAxes(); }
};

// Null if the attributes are of no border. `names`: of the grids; the attribute `mesh` is one.
// Errors: InvalidArgument naming the attribute that cannot be read.
absl::StatusOr<std::shared_ptr<const Border>> ParseBorder(const Attributes& attributes,
                                                          absl::Span<const GridPtr> grids,
                                                          absl::Span<const std::string> names);

}  // namespace spmd::ir
