// SPDX-License-Identifier: Apache-2.0
// How a value gets from one sharding to another, and what that costs.
//
//   {data},{}  ->  {},{data}                    all_to_all(data, 0->1)
//   {},{} unreduced(sum){x}  ->  {x},{}         reduce_scatter(x, 0)
//   {a},{}     ->  {},{}                        all_gather(a, 0)
//   {x,y}, 10 rows  ->  {x}, 10 rows            exchange: chunks of 3 do not merge to chunks of 5
#pragma once

#include "absl/container/inlined_vector.h"
#include "csrc/ir/type.h"
#include "csrc/machine/machine.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::cost {

enum class MoveKind : uint8_t {
  kSlice,
  kAllGather,
  kAllToAll,
  kExchange,
  kAllReduce,
  kReduceScatter,
  kTerm
};

struct MoveStep {
  MoveKind kind;
  AxisList axes;
  int dim = -1;
  int to_dim = -1;
  Sharding result;
  int64_t wire_bytes = 0;  // sent per device
};

struct MovePlan {
  absl::InlinedVector<MoveStep, 2> steps;  // empty: nothing to do
  int64_t wire_bytes = 0;
  double seconds = 0;
};

// The cheapest plan this planner knows: slices first (they shrink what is reduced), then
// reduce-scatters, all-reduces, all-to-alls, gathers, slices; one exchange where the shards'
// boundaries do not allow these or where it is cheaper.
// Requires: both shardings are in `grid` and fit the type. Exact: the last step's result is `to`.
MovePlan PlanMove(const TensorType& type, const Grid& grid, const Sharding& from,
                  const Sharding& to, const machine::Machine& machine);

// Indices per shard of dimension `dim` of extent n, the default filled in; n when not cut.
int64_t EffectiveChunk(const DimSharding& dim, int64_t n, const Grid& grid);
// Of the largest shard.
int64_t MaxShardSize(const DimSharding& dim, int64_t n, const Grid& grid);
// Bytes of the largest tile.
int64_t TileBytes(const TensorType& type, const Sharding& sharding, const Grid& grid);
// Chunk 0 where the chunk is the default one, so that equal placements compare equal.
void NormalizeChunk(DimSharding& dim, int64_t n, const Grid& grid);

}  // namespace spmd::cost
