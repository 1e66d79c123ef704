// SPDX-License-Identifier: Apache-2.0
// The sizes of the tiles of a sharding, without a list of all devices.
#pragma once

#include <cstdint>

#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::cost {

// Indices per shard of a dimension of n indices, with the default chunk filled in; n where it is
// replicated.
int64_t EffectiveChunk(const DimSharding& dim, int64_t n, const Grid& grid);
// The size of the largest of `shards` shards of `chunk` indices; the last shard has the rest.
int64_t MaxShardSize(int64_t n, int64_t shards, int64_t chunk);
int64_t MaxShardSize(const DimSharding& dim, int64_t n, const Grid& grid);
// Bytes of the largest tile.
int64_t TileBytes(const TensorType& type, const Sharding& sharding, const Grid& grid);
// Sets the chunk to 0 where it is the default one, so that equal placements compare equal.
void NormalizeChunk(DimSharding& dim, int64_t n, const Grid& grid);
// `sharding` with closed dimensions and normalized chunks.
Sharding Normalized(const Sharding& sharding, const TensorType& type, const Grid& grid);

}  // namespace spmd::cost
