// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/tile.h"

#include <algorithm>

namespace spmd::cost {

int64_t EffectiveChunk(const DimSharding& dim, int64_t n, const Grid& grid) {
  if (dim.axes.empty()) return n;
  return dim.chunk != 0 ? dim.chunk : CeilDiv(n, grid.size(dim.axes));
}

int64_t MaxShardSize(int64_t n, int64_t shards, int64_t chunk) {
  return std::max(std::min(chunk, n), n - (shards - 1) * chunk);
}

int64_t MaxShardSize(const DimSharding& dim, int64_t n, const Grid& grid) {
  return MaxShardSize(n, grid.size(dim.axes), EffectiveChunk(dim, n, grid));
}

int64_t TileBytes(const TensorType& type, const Sharding& sharding, const Grid& grid) {
  int64_t bytes = ByteSize(type.dtype);
  for (int d = 0; d < type.rank(); ++d) {
    bytes *= MaxShardSize(sharding.dims[d], type.dims[d], grid);
  }
  return bytes;
}

void NormalizeChunk(DimSharding& dim, int64_t n, const Grid& grid) {
  if (dim.axes.empty() || dim.chunk == CeilDiv(n, grid.size(dim.axes))) dim.chunk = 0;
}

Sharding Normalized(const Sharding& sharding, const TensorType& type, const Grid& grid) {
  Sharding normalized = sharding.Closed();
  for (int d = 0; d < type.rank(); ++d) NormalizeChunk(normalized.dims[d], type.dims[d], grid);
  return normalized;
}

}  // namespace spmd::cost
