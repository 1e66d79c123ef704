// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/spec.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd {
namespace {

const SpecEntry kNone;
const SpecEntry kOpen = {{}, true};

SpecEntry Cut(std::vector<SpecAxis> axes) { return {std::move(axes), false}; }
SpecAxis Name(const char* name) { return std::string(name); }
SpecAxis Index(int64_t index) { return index; }

Mesh MeshOf(std::vector<int64_t> shape, std::vector<std::string> names) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  std::vector<int64_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return *Mesh::Create(ids, shape, names);
}

const Mesh& DataModel() {
  static const Mesh& mesh = *new Mesh(MeshOf({2, 4}, {"data", "model"}));
  return mesh;
}

std::string Resolved(const PartitionSpec& spec, const Mesh& mesh) {
  const GridPtr grid = Grid::Of(mesh);
  const auto sharding =
      ResolveSpec("mark_sharding", spec, mesh, *grid, static_cast<int>(spec.size()));
  return sharding.ok() ? sharding->ToString(*grid) : sharding.status().ToString();
}

absl::Status SpecError(const PartitionSpec& spec, int rank, const Mesh& mesh = DataModel()) {
  return ResolveSpec("mark_sharding", spec, mesh, *Grid::Of(mesh), rank).status();
}

TEST(SpecTest, Resolves) {
  EXPECT_EQ(Resolved({Cut({Name("data")}), kNone}, DataModel()), "{data},{}");
  EXPECT_EQ(Resolved({kNone, Cut({Name("model"), Name("data")})}, DataModel()), "{},{model,data}");
  EXPECT_EQ(Resolved({Cut({Index(1)}), kOpen}, DataModel()), "{model},{?}");
  EXPECT_EQ(Resolved({SpecEntry{{Name("data")}, true}}, DataModel()), "{data,?}");
  EXPECT_EQ(Resolved({}, DataModel()), "");
  EXPECT_EQ(Resolved({Cut({Name("model:1")}), Cut({Name("model:0")})}, DataModel()),
            "{model:1},{model:0}");
}

TEST(SpecTest, AnAxisOfSizeOneCutsNothing) {
  const Mesh mesh = MeshOf({1, 4}, {"one", "x"});
  EXPECT_EQ(Resolved({Cut({Name("one")}), Cut({Name("x")})}, mesh), "{},{x}");
}

TEST(SpecTest, ResolvesInTheGridOfSeveralMeshes) {
  const Mesh other = MeshOf({8}, {"x"});
  const Grid::Common common = Grid::ForMeshes({DataModel(), other});
  const auto sharding =
      ResolveSpec("mark_sharding", {Cut({Name("x")})}, other, *common.grids[0], 1);
  EXPECT_EQ(sharding->ToString(*common.grids[0]), "{data,model}");
}

TEST(SpecTest, SpecsPrintAsPythonWritesThem) {
  EXPECT_EQ(SpecToString({Cut({Name("data")}), kNone, Cut({Name("x"), Name("y")}), kOpen}),
            "('data', None, ('x', 'y'), UNCONSTRAINED)");
  EXPECT_EQ(SpecToString({Cut({Index(0)})}), "(0,)");
  EXPECT_EQ(SpecToString({}), "()");
}

TEST(SpecTest, UnknownAxis) {
  EXPECT_EQ(SpecError({Cut({Name("data")}), Cut({Name("modle")})}, 2),
            absl::InvalidArgumentError(
                "mark_sharding: spec ('data', 'modle') names axis 'modle', which mesh [data=2, "
                "model=4] does not have; did you mean 'model'?"));
  EXPECT_EQ(SpecError({Cut({Name("expert")})}, 1),
            absl::InvalidArgumentError(
                "mark_sharding: spec ('expert',) names axis 'expert', which mesh [data=2, model=4] "
                "does not have; its axes are 'data', 'model'"));
  EXPECT_EQ(SpecError({Cut({Name("model:2")})}, 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SpecTest, RankMismatch) {
  EXPECT_EQ(SpecError({Cut({Name("data")})}, 2),
            absl::InvalidArgumentError(
                "mark_sharding: spec ('data',) has 1 entry but the tensor has 2 dimensions; give "
                "one entry per dimension, None where it is not sharded, as in ('data', None)"));
  EXPECT_EQ(SpecError({Cut({Name("data")}), kNone}, 1),
            absl::InvalidArgumentError(
                "mark_sharding: spec ('data', None) has 2 entries but the tensor has 1 dimension; "
                "give one entry per dimension, None where it is not sharded, as in ('data',)"));
}

TEST(SpecTest, RepeatedAxis) {
  EXPECT_EQ(
      SpecError({Cut({Name("data")}), Cut({Name("data")})}, 2),
      absl::InvalidArgumentError(
          "mark_sharding: spec ('data', 'data') uses axis 'data' of mesh [data=2, model=4] in "
          "dimensions 0 and 1; an axis may shard one dimension, once"));
  EXPECT_EQ(SpecError({Cut({Name("model"), Index(1)})}, 1),
            absl::InvalidArgumentError(
                "mark_sharding: spec (('model', 1),) uses axis 'model' of mesh [data=2, model=4] "
                "twice in dimension 0; an axis may shard one dimension, once"));
  EXPECT_EQ(SpecError({Cut({Name("model:1")}), Cut({Name("model")})}, 2),
            absl::InvalidArgumentError(
                "mark_sharding: spec ('model:1', 'model') uses axis 'model' of mesh [data=2, "
                "model=4] in dimensions 0 and 1; an axis may shard one dimension, once"));
  EXPECT_EQ(SpecError({Cut({Name("one")}), Cut({Name("one")})}, 2, MeshOf({1}, {"one"})).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SpecTest, AxisIndexOutOfRange) {
  EXPECT_EQ(SpecError({Cut({Index(2)}), kNone}, 2),
            absl::OutOfRangeError("mark_sharding: spec (2, None) names axis 2, which mesh [data=2, "
                                  "model=4] does not have; its axes are 0 to 1"));
  EXPECT_EQ(SpecError({Cut({Index(-1)})}, 1, MeshOf({4}, {"x"})),
            absl::OutOfRangeError("mark_sharding: spec (-1,) names axis -1, which mesh [x=4] does "
                                  "not have; its only axis is 0"));
}

TEST(SpecTest, SpecOfIsTheInverse) {
  std::mt19937 rng(31);
  for (int i = 0; i < 1000; ++i) {
    const Mesh mesh = MeshOf({2, 4, 3}, {"a", "b", "c"});
    const GridPtr grid = Grid::Of(mesh);
    const Sharding sharding = RandomSharding(rng, *grid, Dims{5, 6, 7});
    const PartitionSpec spec = SpecOf(sharding, *grid, mesh);
    const auto back = ResolveSpec("mark_sharding", spec, mesh, *grid, 3);
    ASSERT_TRUE(back.ok()) << back.status();
    for (int d = 0; d < 3; ++d) {
      EXPECT_EQ(back->dims[d].axes, sharding.dims[d].axes);
      EXPECT_EQ(back->dims[d].open, sharding.dims[d].open && sharding.dims[d].axes.empty());
    }
  }
}

TEST(SpecTest, SpecOfPrefersWholeAxesOfTheMesh) {
  const Mesh x = MeshOf({8}, {"x"});
  const Grid::Common common = Grid::ForMeshes({DataModel(), x});
  const Grid& grid = *common.grids[0];
  const Sharding sharding = *Sharding::Parse("{data,model},{}", grid);
  EXPECT_EQ(SpecToString(SpecOf(sharding, grid, DataModel())), "(('data', 'model'), None)");
  EXPECT_EQ(SpecToString(SpecOf(sharding, grid, x)), "('x', None)");
  const Sharding half = *Sharding::Parse("{model:0},{?}", grid);
  EXPECT_EQ(SpecToString(SpecOf(half, grid, DataModel())), "('model:0', UNCONSTRAINED)");
}

std::string Hlo(const char* grid_text, const char* sharding) {
  const GridPtr grid = *Grid::Parse(grid_text);
  return HloString(*Sharding::Parse(sharding, *grid), *grid);
}

TEST(HloStringTest, IsXlasText) {
  EXPECT_EQ(Hlo("[data=2, model=2]", "{},{}"), "{replicated}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{data},{model}"), "{devices=[2,2]0,1,2,3}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{model},{data}"), "{devices=[2,2]0,2,1,3}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{data},{}"),
            "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{},{model}"),
            "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{model,data}"), "{devices=[4]0,2,1,3}");
  EXPECT_EQ(Hlo("[x=2, y=2] devices=[3,1,2,0]", "{x},{}"),
            "{devices=[2,1,2]3,1,2,0 last_tile_dim_replicate}");
  EXPECT_EQ(Hlo("[data=2, model=2]", "{data} unreduced(sum){model}"),
            "{devices=[2,2]0,1,2,3 last_tile_dims={unreduced}}");
  EXPECT_EQ(Hlo("[a=2, b=2, c=2]", "{b} unreduced(sum){c}"),
            "{devices=[2,2,2]0,4,1,5,2,6,3,7 last_tile_dims={unreduced, replicated}}");
}

// The oracle reads the text as XLA does: the device at coordinates (i, j, …) of the tile assignment
// holds shard i of dimension 0, and so on.
TEST(HloStringTest, EveryDeviceGetsTheShardThatItsLayoutSays) {
  std::mt19937 rng(32);
  for (int i = 0; i < 500; ++i) {
    const Layout layout = RandomLayout(rng);
    const Grid& grid = *layout.grid();
    const std::string text = HloString(layout.sharding(), grid);
    if (text == "{replicated}") {
      EXPECT_TRUE(layout.sharding().IsReplicated());
      continue;
    }
    Scanner in(text);
    ASSERT_TRUE(in.Expect("{devices=[").ok());
    std::vector<int64_t> tiles, ids;
    do {
      tiles.push_back(*in.Integer("a tile"));
    } while (in.Consume(","));
    ASSERT_TRUE(in.Expect("]").ok());
    do {
      ids.push_back(*in.Integer("an id"));
    } while (in.Consume(","));
    ASSERT_EQ(static_cast<int64_t>(ids.size()), grid.num_devices());
    for (int64_t p = 0; p < grid.num_devices(); ++p) {
      int64_t at = std::find(ids.begin(), ids.end(), grid.device_ids()[p]) - ids.begin();
      for (int t = static_cast<int>(tiles.size()) - 1; t >= 0; at /= tiles[t--]) {
        if (t >= layout.rank()) continue;
        EXPECT_EQ(at % tiles[t], grid.Coordinate(p, layout.sharding().dims[t].axes)) << text;
      }
    }
  }
}

}  // namespace
}  // namespace spmd
