// SPDX-License-Identifier: Apache-2.0
// How large the tiles of a sharding are, without the list of all devices.
#pragma once

#include <cstdint>

#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::cost {

// Indices per shard of dimension `dim` of extent n, the default filled in; n when not cut.
int64_t EffectiveChunk(const DimSharding& dim, int64_t n, const Grid& grid);
// Of the largest of `shards` shards of `chunk` indices, the last of which takes the rest.
int64_t MaxShardSize(int64_t n, int64_t shards, int64_t chunk);
int64_t MaxShardSize(const DimSharding& dim, int64_t n, const Grid& grid);
// Bytes of the largest tile.
int64_t TileBytes(const TensorType& type, const Sharding& sharding, const Grid& grid);
// Chunk 0 where the chunk is the default one, so that equal placements compare equal.
void NormalizeChunk(DimSharding& dim, int64_t n, const Grid& grid);

}  // namespace spmd::cost
