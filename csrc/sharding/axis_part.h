// SPDX-License-Identifier: Apache-2.0
// Parts of a mesh axis, for specs that whole axes cannot express. After a view that splits a
// dimension sharded over an axis of 8 into sizes 2 and 4, the first dimension is sharded over the
// major 2 of that axis.
//
//   model:0       the first (major) of the axis's prime factors, ascending: 8 = 2 * 2 * 2
//   model:(2)4    the part of size 4 that is minor to the major 2
//
// The first form is used whenever the part is a prime factor, which is nearly always. Both forms
// depend on the size of the axis alone, not on other meshes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/mesh/grid.h"
#include "csrc/mesh/mesh.h"

namespace spmd {

struct AxisPart {
  int axis;        // index in the mesh
  int64_t before;  // product of the sizes of the parts that are major to it
  int64_t size;
};

// Errors: InvalidArgument whose text ends a sentence about `name`: there is no such axis, or which
// parts the axis has.
absl::StatusOr<AxisPart> ParseAxisPart(absl::string_view name, const Mesh& mesh);
// The sub-axes of `grid` that make up `part`; nullopt if the part ends inside a sub-axis.
// Requires: grid.Refines(mesh).
std::optional<AxisList> AxesOfPart(const AxisPart& part, const Mesh& mesh, const Grid& grid);
// The name of a sub-axis of `grid` as a part of an axis of `mesh`; the grid's own name where it is
// not such a part.
std::string NameOfPart(AxisId sub_axis, const Mesh& mesh, const Grid& grid);
// A grid in which every part that `names` mention is a list of sub-axes.
GridPtr GridWithParts(const Mesh& mesh, absl::Span<const std::string> names);

}  // namespace spmd
