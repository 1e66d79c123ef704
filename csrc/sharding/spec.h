// SPDX-License-Identifier: Apache-2.0
// PartitionSpec as the user writes it: per dimension of a tensor, the mesh axes that shard it.
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

// An axis by name or by index. "model:0" names a part of an axis (see axis_part.h), as SpecOf
// writes it.
using SpecAxis = std::variant<std::string, int64_t>;

// One dimension: replicated (no axes), sharded by `axes` (major first), or left open. With `blocks`
// > 1 the dimension is that many consecutive blocks of one size, each of which is sharded so.
struct SpecEntry {
  std::vector<SpecAxis> axes;
  bool unconstrained = false;
  int64_t blocks = 1;
};

using PartitionSpec = std::vector<SpecEntry>;

bool HasBlocks(const PartitionSpec& spec);

// Each dimension of blocks split in two: the number of blocks, and the indices of one block.
// {64, 192} with (None, blocks(3, 'model')) becomes {64, 3, 64} with (None, None, 'model').
struct BlocksApart {
  Dims dims;
  Dims strides;
  PartitionSpec spec;
};
// Errors: InvalidArgument where a dimension does not divide into that many blocks of one size.
absl::StatusOr<BlocksApart> TakeBlocksApart(absl::string_view caller, const PartitionSpec& spec,
                                            const Dims& dims, const Dims& strides);

// "('data', None, ('x', 'y'), UNCONSTRAINED, blocks(3, 'model'))".
std::string SpecToString(const PartitionSpec& spec);

// The sharding in `grid` that `spec` on `mesh` means for a tensor of `rank` dimensions; for a
// dimension of blocks it is the sharding of each block.
// Requires: grid.Refines(mesh).
// Errors, all naming spec, mesh and the fix (`caller` starts the message, e.g. "mark_sharding"):
//   InvalidArgument  rank mismatch; unknown axis (did you mean); an axis used twice
//   OutOfRange       axis index not in [0, rank of the mesh)
absl::StatusOr<Sharding> ResolveSpec(absl::string_view caller, const PartitionSpec& spec,
                                     const Mesh& mesh, const Grid& grid, int rank);

// The spec on `mesh` that is equal to `sharding`. Sub-axes that do not form a whole axis of the
// mesh are written as parts ("model:0"). An open dimension is UNCONSTRAINED only when it has no
// axes.
PartitionSpec SpecOf(const Sharding& sharding, const Grid& grid, const Mesh& mesh);

// XLA's text for the sharding: "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{replicated}",
// "{devices=[1,2,2]0,1,2,3 last_tile_dims={unreduced, replicated}}". XLA has no chunks, so they are
// left out.
std::string HloString(const Sharding& sharding, const Grid& grid);

}  // namespace spmd
