// SPDX-License-Identifier: Apache-2.0
// PartitionSpec: per dimension of a tensor, the mesh axes that cut it, as the user writes it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/mesh/grid.h"
#include "csrc/mesh/mesh.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/dims.h"

namespace spmd {

// An axis by name or by index. "model:0" names a sub-axis of the grid, as SpecOf writes it.
using SpecAxis = std::variant<std::string, int64_t>;

// One dimension: not cut (no axes, closed), cut by axes (major first), or left open. `blocks` > 1:
// it is so many blocks of one size, one after another, each of which is cut.
struct SpecEntry {
  std::vector<SpecAxis> axes;
  bool unconstrained = false;
  int64_t blocks = 1;
};

using PartitionSpec = std::vector<SpecEntry>;

bool HasBlocks(const PartitionSpec& spec);

// Dimensions of blocks as two: the blocks, and what they are made of. {64, 192} and
// (None, blocks(3, 'model')) are {64, 3, 64} and (None, None, 'model').
struct BlocksApart {
  Dims dims;
  Dims strides;
  PartitionSpec spec;
};
// Errors: InvalidArgument where a dimension is not so many blocks of one size.
absl::StatusOr<BlocksApart> TakeBlocksApart(absl::string_view caller, const PartitionSpec& spec,
                                            const Dims& dims, const Dims& strides);

// "('data', None, ('x', 'y'), UNCONSTRAINED, blocks(3, 'model'))".
std::string SpecToString(const PartitionSpec& spec);

// The sharding that `spec` on `mesh` means for a tensor of `rank` dimensions, in `grid`; of blocks
// that of each.
// Requires: grid.Refines(mesh).
// Errors, all naming spec, mesh and the fix (`caller` starts the message, e.g. "mark_sharding"):
//   InvalidArgument  rank mismatch; unknown axis (did you mean); an axis used twice
//   OutOfRange       axis index not in [0, rank of the mesh)
absl::StatusOr<Sharding> ResolveSpec(absl::string_view caller, const PartitionSpec& spec,
                                     const Mesh& mesh, const Grid& grid, int rank);

// The spec that `sharding` amounts to on `mesh`, whole axes only; entries whose sub-axes form no
// whole axes of the mesh are written by sub-axis name ("model:0"). Open dims are UNCONSTRAINED only
// when they carry no axes.
PartitionSpec SpecOf(const Sharding& sharding, const Grid& grid, const Mesh& mesh);

// XLA's text for the sharding: "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{replicated}",
// "{devices=[1,2,2]0,1,2,3 last_tile_dims={unreduced, replicated}}". XLA knows no chunks; they do
// not show.
std::string HloString(const Sharding& sharding, const Grid& grid);

}  // namespace spmd
