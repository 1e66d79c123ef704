// SPDX-License-Identifier: Apache-2.0
// Parts of a mesh axis, for specs that whole axes cannot say: after a view that splits a dimension
// cut by an axis of 8 into 2 and 4, the first dimension is cut by the major 2 of it.
//
//   model:0       the first (major) of the axis's prime factors, ascending: 8 = 2 * 2 * 2
//   model:(2)4    the 4 that come below the major 2
//
// The first form is written where a part is such a factor, as it nearly always is. Either says the
// same whatever other meshes there are: it depends on the size of the axis alone.
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
  int axis;        // of the mesh
  int64_t before;  // product of the sizes of the parts that are major to it
  int64_t size;
};

// Errors: InvalidArgument that ends a sentence about `name`: no such axis, or what its parts are.
absl::StatusOr<AxisPart> ParseAxisPart(absl::string_view name, const Mesh& mesh);
// In the grid; nullopt where its sub-axes are not such that the part is some of them.
// Requires: grid.Refines(mesh).
std::optional<AxisList> AxesOfPart(const AxisPart& part, const Mesh& mesh, const Grid& grid);
// What a sub-axis of the grid is called in terms of the mesh; where it is no part of one of the
// mesh's axes, as the grid calls it.
std::string NameOfPart(AxisId sub_axis, const Mesh& mesh, const Grid& grid);
// A grid in which all parts that `names` speak of can be said.
GridPtr GridWithParts(const Mesh& mesh, absl::Span<const std::string> names);

}  // namespace spmd
