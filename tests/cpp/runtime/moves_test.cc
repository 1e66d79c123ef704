// SPDX-License-Identifier: Apache-2.0
// Every move over random layouts, uneven and empty tiles included, against the value itself.
#include "csrc/runtime/moves.h"

#include <gtest/gtest.h>

#include "csrc/runtime/executor.h"
#include "tests/cpp/runtime/move_to.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

std::shared_ptr<Backend> CpuBackend() { return *MakeBackend("cpu", std::nullopt); }

const Dims kShapes[] = {{}, {7}, {1, 5}, {8, 6}, {5, 3, 2}, {0, 4}, {2, 13, 3}};

TEST(Moves, AnyLayoutToAnyLayout) {
  const auto backend = CpuBackend();
  const GridPtr grid = MakeGrid({2, 3, 2}, {"a", "b", "c"});
  LayoutMaker maker(1);
  for (int trial = 0; trial < 400; ++trial) {
    const Dims& dims = kShapes[maker.Below(std::size(kShapes))];
    const Layout from = maker.Make(grid, dims, true), to = maker.Make(grid, dims, true);
    const TiledTensorPtr value = RandomTiles(from);
    const at::Tensor expected = Assemble(*value);
    const TiledTensorPtr moved = MoveTo(*value, to, *backend);
    ASSERT_TRUE(at::equal(Assemble(*moved), expected)) << from.ToString() << " → " << to.ToString();
    ASSERT_TRUE(at::equal(*Download(*value), expected)) << from.ToString();
    ASSERT_TRUE(at::equal(Assemble(*value), expected)) << "the source was changed";
  }
}

TEST(Moves, KindsOfReduction) {
  const auto backend = CpuBackend();
  const GridPtr grid = MakeGrid({2, 2, 2}, {"a", "b", "c"});
  LayoutMaker maker(2);
  for (ReduceKind kind : {ReduceKind::kSum, ReduceKind::kProd, ReduceKind::kMax, ReduceKind::kMin,
                          ReduceKind::kAnd, ReduceKind::kOr}) {
    for (at::ScalarType type : {at::kFloat, at::kLong, at::kBFloat16, at::kDouble, at::kBool}) {
      const bool logical = kind == ReduceKind::kAnd || kind == ReduceKind::kOr;
      if (logical != (type == at::kBool)) continue;
      for (int trial = 0; trial < 30; ++trial) {
        const Layout from = maker.Make(grid, {5, 4}, true, kind);
        const Layout to = maker.Make(grid, {5, 4}, from.sharding().IsUnreduced(), kind);
        const TiledTensorPtr value = RandomTiles(from, type);
        const at::Tensor expected = Assemble(*value);
        ASSERT_TRUE(at::equal(Assemble(*MoveTo(*value, to, *backend)), expected))
            << ReduceKindName(kind) << " " << type << " " << from.ToString() << " → "
            << to.ToString();
      }
    }
  }
}

// Four partial sums, of which the first two alone exceed f16.
TEST(Moves, TermsOfHalfTypesAreHeldInFloat) {
  const auto backend = CpuBackend();
  const GridPtr grid = MakeGrid({2, 2}, {"a", "b"});
  Sharding terms = Sharding::Replicated(1);
  terms.unreduced = {0, 1};
  Sharding some = Sharding::Replicated(1);
  some.unreduced = {1};
  const auto layout = [&](const Sharding& sharding) { return Layout(grid, sharding, Dims{3}); };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    TiledTensor value{layout(terms), FromScalarType(type), {}};
    for (const double term : {60000.25, 60000.0, -60000.0, -59999.0}) {
      value.tiles.push_back(at::full({3}, term, at::kFloat));
    }
    const at::Tensor expected = at::full({3}, 1.25, type);
    EXPECT_TRUE(at::equal(*Download(value), expected));
    const TiledTensorPtr partly = MoveTo(value, layout(some), *backend);
    EXPECT_EQ(partly->tiles[0].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(*Download(*partly), expected));
    const TiledTensorPtr sum = MoveTo(*partly, layout(Sharding::Replicated(1)), *backend);
    EXPECT_TRUE(at::equal(sum->tiles[0], expected));
    // A value that becomes unreduced.
    const TiledTensorPtr term = MoveTo(*sum, layout(terms), *backend);
    for (const at::Tensor& tile : term->tiles) EXPECT_EQ(tile.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(*Download(*term), expected));
  }
}

TEST(Moves, BetweenGrids) {
  const auto backend = CpuBackend();
  const GridPtr grids[] = {MakeGrid({2, 3}, {"a", "b"}), MakeGrid({3, 2}, {"x", "y"}),
                           MakeGrid({4}, {"z"}, {5, 2, 0, 7}), Grid::SingleDevice(),
                           MakeGrid({2, 2}, {"u", "v"}, {3, 2, 1, 0})};
  LayoutMaker maker(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Dims& dims = kShapes[maker.Below(std::size(kShapes))];
    const Layout from = maker.Make(grids[maker.Below(std::size(grids))], dims, true);
    const Layout to = maker.Make(grids[maker.Below(std::size(grids))], dims, true);
    const TiledTensorPtr value = RandomTiles(from);
    ASSERT_TRUE(at::equal(Assemble(*MoveTo(*value, to, *backend)), Assemble(*value)))
        << from.ToString() << " → " << to.ToString();
  }
}

TEST(Moves, SharesWhatIsThereAlready) {
  const auto backend = CpuBackend();
  const GridPtr grid = MakeGrid({2, 2}, {"a", "b"});
  const Layout rows(grid, *Sharding::Parse("{a},{}", *grid), {4, 4});
  const Layout replicated(grid, Sharding::Replicated(2), {4, 4});
  const TiledTensorPtr value = RandomTiles(rows);
  const TiledTensorPtr same = MoveTo(*value, rows, *backend);
  EXPECT_TRUE(same->tiles[1].is_same(value->tiles[1]));
  // A slice is a view; a gather is a copy.
  const TiledTensorPtr whole = MoveTo(*value, replicated, *backend);
  EXPECT_NE(whole->tiles[0].data_ptr(), value->tiles[0].data_ptr());
  const TiledTensorPtr back = MoveTo(*whole, rows, *backend);
  EXPECT_TRUE(back->tiles[1].is_alias_of(whole->tiles[0]));
  EXPECT_TRUE(at::equal(back->tiles[1], value->tiles[1]));
}

TEST(Moves, UploadAndDownloadCopy) {
  const auto backend = CpuBackend();
  const GridPtr grid = MakeGrid({2, 2}, {"a", "b"});
  LayoutMaker maker(4);
  for (int trial = 0; trial < 100; ++trial) {
    const Dims& dims = kShapes[maker.Below(std::size(kShapes))];
    at::Tensor host = at::randn(Sizes(dims));
    if (host.dim() == 2) host = at::randn({dims[1], dims[0]}).t();
    const TiledTensorPtr value = Upload(host, maker.Make(grid, dims, false), *backend);
    const at::Tensor before = host.clone();
    host.fill_(7);
    ASSERT_TRUE(at::equal(Assemble(*value), before));
    at::Tensor read = *Download(*value);
    EXPECT_TRUE(read.is_contiguous());
    read.fill_(9);
    ASSERT_TRUE(at::equal(Assemble(*value), before));
  }
}

TEST(Moves, ElementTypesMapBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(FromScalarType(ToScalarType(dtype)), dtype);
    EXPECT_EQ(ByteSize(dtype), static_cast<int64_t>(c10::elementSize(ToScalarType(dtype))));
  }
}

}  // namespace
}  // namespace spmd::runtime
