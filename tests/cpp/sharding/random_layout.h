// SPDX-License-Identifier: Apache-2.0
// Random grids and shardings for property tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "csrc/mesh/grid.h"
#include "csrc/sharding/layout.h"
#include "csrc/util/dims.h"

namespace spmd {

inline GridPtr RandomGrid(std::mt19937& rng) {
  static const std::vector<std::vector<int64_t>> shapes = {
      {2}, {3}, {5}, {2, 4}, {4, 2}, {2, 3}, {2, 2, 2}, {6}, {8}, {2, 1, 3}};
  const std::vector<int64_t> shape = shapes[rng() % shapes.size()];
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  std::vector<int64_t> ids(n);
  std::iota(ids.begin(), ids.end(), static_cast<int64_t>(rng() % 2) * 10);
  if (rng() % 2) std::shuffle(ids.begin(), ids.end(), rng);
  return Grid::Of(*Mesh::Create(ids, shape, std::nullopt));
}

// From the least that is legal to two more than the default.
inline int64_t RandomChunk(std::mt19937& rng, int64_t n, int64_t shards) {
  const int64_t least = std::max<int64_t>(1, CeilDiv(n, shards + 1));
  const int64_t most = CeilDiv(n, shards) + 2;
  return least + static_cast<int64_t>(rng() % (most - least + 1));
}

// Deals the grid's axes to dimensions, to the unreduced ones and to none; chunks are the default or
// a little larger; dims from 0 to 12 make uneven and empty tiles.
inline Sharding RandomSharding(std::mt19937& rng, const Grid& grid, const Dims& dims) {
  const int rank = static_cast<int>(dims.size());
  Sharding sharding = Sharding::Replicated(rank);
  std::vector<AxisId> axes(grid.num_axes());
  std::iota(axes.begin(), axes.end(), AxisId{0});
  std::shuffle(axes.begin(), axes.end(), rng);
  for (AxisId axis : axes) {
    const int to = static_cast<int>(rng() % (rank + 2));
    if (to < rank) sharding.dims[to].axes.push_back(axis);
    if (to == rank) sharding.unreduced.push_back(axis);
  }
  std::sort(sharding.unreduced.begin(), sharding.unreduced.end());
  if (!sharding.unreduced.empty()) sharding.reduce_kind = static_cast<ReduceKind>(rng() % 6);
  for (int d = 0; d < rank; ++d) {
    sharding.dims[d].open = rng() % 4 == 0;
    if (!sharding.dims[d].axes.empty() && rng() % 2) {
      sharding.dims[d].chunk = RandomChunk(rng, dims[d], grid.size(sharding.dims[d].axes));
    }
  }
  return sharding;
}

inline Dims RandomDims(std::mt19937& rng) {
  Dims dims(rng() % 4);
  for (int64_t& n : dims) n = static_cast<int64_t>(rng() % 13);
  return dims;
}

inline Layout RandomLayout(std::mt19937& rng) {
  const GridPtr grid = RandomGrid(rng);
  const Dims dims = RandomDims(rng);
  return Layout(grid, RandomSharding(rng, *grid, dims), dims);
}

}  // namespace spmd
