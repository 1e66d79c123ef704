// SPDX-License-Identifier: Apache-2.0
// The oracle: for each device and each global index of a dimension, ask by counting whether the
// device holds it.
#include "csrc/sharding/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/cpp/sharding/random_layout.h"

namespace spmd {
namespace {

GridPtr GridOf(const char* text) { return *Grid::Parse(text); }

Layout LayoutFrom(const GridPtr& grid, const char* sharding, Dims dims) {
  return Layout(grid, *Sharding::Parse(sharding, *grid), dims);
}

// Deals the n indices of a dimension out in runs of `chunk`, the last of the shards taking the
// rest: the number of the shard of each.
std::vector<int64_t> ShardOfIndex(int64_t n, int64_t chunk, int64_t shards) {
  std::vector<int64_t> shard_of;
  for (int64_t shard = 0; static_cast<int64_t>(shard_of.size()) < n; ++shard) {
    for (int64_t k = 0; k < chunk && static_cast<int64_t>(shard_of.size()) < n; ++k) {
      shard_of.push_back(std::min(shard, shards - 1));
    }
  }
  return shard_of;
}

// Which shard a device has, digit by digit, from the strides of the sub-axes.
int64_t ShardOfPosition(const Grid& grid, const AxisList& axes, int64_t position) {
  int64_t shard = 0;
  for (AxisId axis : axes) {
    int64_t stride = 1;
    for (int k = grid.num_axes() - 1; k > axis; --k) stride *= grid.size(static_cast<AxisId>(k));
    shard = shard * grid.size(axis) + position / stride % grid.size(axis);
  }
  return shard;
}

TEST(LayoutTest, BoxesAreWhatDealingOutIndicesGives) {
  std::mt19937 rng(11);
  for (int i = 0; i < 2000; ++i) {
    const Layout layout = RandomLayout(rng);
    const Grid& grid = *layout.grid();
    for (int d = 0; d < layout.rank(); ++d) {
      const int64_t n = layout.dims()[d];
      const DimSharding& dim = layout.sharding().dims[d];
      const int64_t k = grid.size(dim.axes);
      const int64_t chunk = dim.chunk != 0 ? dim.chunk : (n + k - 1) / k;
      const std::vector<int64_t> shard_of = ShardOfIndex(n, chunk, k);
      for (int64_t p = 0; p < grid.num_devices(); ++p) {
        const Interval interval = layout.BoxAt(p)[d];
        const int64_t shard = ShardOfPosition(grid, dim.axes, p);
        for (int64_t index = 0; index < n; ++index) {
          const bool held = interval.begin <= index && index < interval.end;
          EXPECT_EQ(held, shard_of[index] == shard) << layout.ToString() << " at " << p;
        }
        EXPECT_LE(interval.end, n);
        EXPECT_LE(interval.begin, interval.end);
      }
    }
  }
}

// Every element is held, with each partial sum, by exactly the replicas: devices that differ only
// along axes that the sharding does not use.
TEST(LayoutTest, TilesPartitionTheValueOncePerTerm) {
  std::mt19937 rng(12);
  for (int i = 0; i < 2000; ++i) {
    const Layout layout = RandomLayout(rng);
    const int64_t terms = layout.grid()->size(layout.sharding().unreduced);
    std::map<int64_t, int64_t> elements_of_term;
    for (int64_t t = 0; t < layout.num_tiles(); ++t) {
      elements_of_term[layout.TermOfTile(t)] += NumElements(layout.BoxOfTile(t));
    }
    EXPECT_EQ(static_cast<int64_t>(elements_of_term.size()), terms);
    for (const auto& [term, elements] : elements_of_term) {
      EXPECT_EQ(elements, NumElements(layout.dims())) << layout.ToString();
    }
  }
}

TEST(LayoutTest, TilesNameSetsOfReplicas) {
  std::mt19937 rng(13);
  for (int i = 0; i < 1000; ++i) {
    const Layout layout = RandomLayout(rng);
    const Grid& grid = *layout.grid();
    std::map<int64_t, std::set<int64_t>> holders;
    int64_t largest = 0;
    for (int64_t p = 0; p < grid.num_devices(); ++p) {
      holders[layout.TileAt(p)].insert(p);
      EXPECT_EQ(layout.BoxAt(p), layout.BoxOfTile(layout.TileAt(p)));
      largest = std::max(largest, NumElements(layout.BoxAt(p)));
    }
    EXPECT_EQ(static_cast<int64_t>(holders.size()), layout.num_tiles());
    EXPECT_EQ(layout.MaxTileElements(), largest) << layout.ToString();
    const int64_t replicas = grid.num_devices() / layout.num_tiles();
    for (const auto& [tile, positions] : holders) {
      EXPECT_EQ(static_cast<int64_t>(positions.size()), replicas);
      EXPECT_EQ(layout.FirstPositionOf(tile), *positions.begin());
    }
  }
}

TEST(LayoutTest, IsEvenMeansEqualSizes) {
  std::mt19937 rng(14);
  for (int i = 0; i < 1000; ++i) {
    const Layout layout = RandomLayout(rng);
    bool even = true;
    for (int d = 0; d < layout.rank(); ++d) {
      for (int64_t s = 0; s < layout.num_shards(d); ++s) {
        even = even && layout.ShardInterval(d, s).size() == layout.ShardInterval(d, 0).size();
      }
    }
    EXPECT_EQ(layout.IsEven(), even) << layout.ToString();
  }
}

TEST(LayoutTest, TheLastShardTakesTheRest) {
  const GridPtr grid = GridOf("[x=8]");
  const Layout layout = LayoutFrom(grid, "{x chunk=128}", {1025});
  EXPECT_EQ(layout.ShardInterval(0, 6), (Interval{768, 896}));
  EXPECT_EQ(layout.ShardInterval(0, 7), (Interval{896, 1025}));
  EXPECT_EQ(layout.MaxTileElements(), 129);
  EXPECT_FALSE(layout.IsEven());
}

TEST(LayoutTest, TrailingShardsMayBeSmallerOrEmpty) {
  const GridPtr grid = GridOf("[x=4]");
  auto shards = [&](int64_t n) {
    const Layout layout = LayoutFrom(grid, "{x}", {n});
    Box box;
    for (int64_t s = 0; s < 4; ++s) box.push_back(layout.ShardInterval(0, s));
    return BoxToString(box);
  };
  EXPECT_EQ(shards(10), "[0:3, 3:6, 6:9, 9:10]");
  EXPECT_EQ(shards(5), "[0:2, 2:4, 4:5, 5:5]");
  EXPECT_EQ(shards(1), "[0:1, 1:1, 1:1, 1:1]");
  EXPECT_EQ(shards(0), "[0:0, 0:0, 0:0, 0:0]");
}

TEST(LayoutTest, TilesAreNumberedByDimensionThenTerm) {
  const GridPtr grid = GridOf("[a=2, b=3, c=2]");
  const Layout layout = LayoutFrom(grid, "{c},{b} unreduced(sum){a}", {4, 6});
  EXPECT_EQ(layout.num_tiles(), 12);
  // a=1, b=2, c=0 is position 1*6 + 2*2 + 0.
  EXPECT_EQ(layout.TileAt(10), (0 * 3 + 2) * 2 + 1);
  EXPECT_EQ(layout.TermOfTile(layout.TileAt(10)), 1);
  EXPECT_EQ(BoxToString(layout.BoxAt(10)), "[0:2, 4:6]");
}

TEST(LayoutTest, EqualityIsOfPlacement) {
  const GridPtr grid = GridOf("[x=4]");
  EXPECT_EQ(LayoutFrom(grid, "{x}", {10}), LayoutFrom(grid, "{x chunk=3}", {10}));
  EXPECT_EQ(LayoutFrom(grid, "{x}", {10}), LayoutFrom(GridOf("[x=4]"), "{x,?}", {10}));
  EXPECT_NE(LayoutFrom(grid, "{x}", {10}), LayoutFrom(grid, "{x chunk=4}", {10}));
  EXPECT_NE(LayoutFrom(grid, "{x}", {10}), LayoutFrom(grid, "{}", {10}));
  EXPECT_NE(LayoutFrom(grid, "{x}", {10}), LayoutFrom(GridOf("[x=4] devices=[4..7]"), "{x}", {10}));
  EXPECT_NE(LayoutFrom(grid, "{} unreduced(sum){x}", {4}),
            LayoutFrom(grid, "{} unreduced(max){x}", {4}));
}

TEST(LayoutTest, Prints) {
  const GridPtr grid = GridOf("[data=2, model=4]");
  EXPECT_EQ(LayoutFrom(grid, "{data},{}", {32, 128}).ToString(), "[32,128] {data},{}");
  EXPECT_EQ(Layout(grid, Sharding::Replicated(0), {}).ToString(), "[]");
}

TEST(LayoutTest, HugeChunksDoNotOverflow) {
  const GridPtr grid = GridOf("[x=8]");
  const Layout layout = LayoutFrom(grid, "{x chunk=9223372036854775807}", {10});
  EXPECT_EQ(layout.ShardInterval(0, 0), (Interval{0, 10}));
  EXPECT_EQ(layout.ShardInterval(0, 7), (Interval{10, 10}));
}

TEST(LayoutTest, CheckLayoutSaysWhatDoesNotFit) {
  const GridPtr grid = GridOf("[x=2, y=2]");
  auto error = [&](const Sharding& sharding, Dims dims) {
    return std::string(CheckLayout(*grid, sharding, dims).message());
  };
  EXPECT_EQ(error(*Sharding::Parse("{x}", *grid), {4, 4}),
            "sharding {x} has 1 dimensions, [4,4] has 2");
  EXPECT_EQ(error(*Sharding::Parse("{x chunk=2}", *grid), {5}), "");
  EXPECT_EQ(error(*Sharding::Parse("{x chunk=1}", *grid), {5}),
            "sharding {x chunk=1} of [5] has chunk 1 in dimension 0; it must be at least 2");
  Sharding bad = Sharding::Replicated(1);
  bad.dims[0].chunk = 4;
  EXPECT_EQ(error(bad, {4}),
            "sharding { chunk=4} of [4] has chunk 4 in dimension 0, which is not sharded");
  bad = Sharding::Replicated(1);
  bad.dims[0].axes = {0, 0};
  EXPECT_EQ(error(bad, {4}),
            "axis 'x' of grid [x=2, y=2] is used twice; an axis shards one dimension only");
  bad.dims[0].axes = {7};
  EXPECT_EQ(error(bad, {4}), "axis 7 is not one of the 2 sub-axes of grid [x=2, y=2]");
}

TEST(LayoutTest, EachDeviceAlongManualAxesHasATileOfItsOwn) {
  const GridPtr grid = *Grid::Parse("[x=2, y=3]");
  const Layout layout(grid, *Sharding::Parse("{y} manual{x}", *grid), Dims{6});
  EXPECT_EQ(layout.num_tiles(), 6);
  for (int64_t position = 0; position < 6; ++position) {
    EXPECT_EQ(layout.TileAt(position), position);
    EXPECT_EQ(layout.FirstPositionOf(position), position);
    EXPECT_EQ(layout.BoxAt(position), (Box{{position % 3 * 2, position % 3 * 2 + 2}}));
    EXPECT_EQ(layout.TermOfTile(position), 0);
  }
  EXPECT_FALSE(layout == Layout(grid, *Sharding::Parse("{y}", *grid), Dims{6}));
  EXPECT_EQ(layout.ToString(), "[6] {y} manual{x}");
}

}  // namespace
}  // namespace spmd
