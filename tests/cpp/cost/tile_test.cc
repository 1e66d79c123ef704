// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "csrc/sharding/layout.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::cost {
namespace {

TEST(Tile, TheLargestShardIsThatOfAllTiles) {
  std::mt19937 rng(11);
  for (int i = 0; i < 1000; ++i) {
    const Layout layout = RandomLayout(rng);
    const TensorType type{DType::kBF16, layout.dims()};
    int64_t bytes = 0;
    Dims largest(layout.rank(), 0);
    for (int64_t t = 0; t < layout.num_tiles(); ++t) {
      const Box box = layout.BoxOfTile(t);
      bytes = std::max(bytes, 2 * NumElements(box));
      for (int d = 0; d < layout.rank(); ++d) largest[d] = std::max(largest[d], box[d].size());
    }
    EXPECT_EQ(TileBytes(type, layout.sharding(), *layout.grid()), bytes) << layout.ToString();
    for (int d = 0; d < layout.rank(); ++d) {
      EXPECT_EQ(MaxShardSize(layout.sharding().dims[d], layout.dims()[d], *layout.grid()),
                largest[d])
          << layout.ToString();
    }
  }
}

TEST(Tile, TheLastShardHasTheRest) {
  EXPECT_EQ(MaxShardSize(10, 2, 5), 5);
  EXPECT_EQ(MaxShardSize(10, 2, 7), 7);
  EXPECT_EQ(MaxShardSize(10, 2, 4), 6);
  EXPECT_EQ(MaxShardSize(10, 4, 3), 3);
  EXPECT_EQ(MaxShardSize(0, 4, 0), 0);
}

TEST(Tile, DefaultChunksAreWrittenAsZero) {
  const GridPtr grid = *Grid::Parse("[a=2, b=4]");
  const TensorType type{DType::kF32, {10, 8}};
  EXPECT_EQ(EffectiveChunk(Sharding::Parse("{b}", *grid)->dims[0], 10, *grid), 3);
  EXPECT_EQ(EffectiveChunk(Sharding::Parse("{b chunk=4}", *grid)->dims[0], 10, *grid), 4);
  EXPECT_EQ(EffectiveChunk(Sharding::Parse("{}", *grid)->dims[0], 10, *grid), 10);
  Sharding written = *Sharding::Parse("{a chunk=5},{b chunk=3}", *grid);
  written.dims[0].open = true;
  EXPECT_EQ(Normalized(written, type, *grid).ToString(*grid), "{a},{b chunk=3}");
}

}  // namespace
}  // namespace spmd::cost
