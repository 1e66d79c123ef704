// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tests/cpp/mesh/meshes.h"

namespace spmd {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Sizes(const Grid& grid) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < grid.num_axes(); ++i) sizes.push_back(grid.size(static_cast<AxisId>(i)));
  return sizes;
}

// The coordinate of a position along one axis of a mesh, by division.
int64_t MeshCoordinate(const Mesh& mesh, int axis, int64_t position) {
  for (int i = mesh.rank() - 1; i > axis; --i) position /= mesh.shape()[i];
  return position % mesh.shape()[axis];
}

TEST(GridTest, SplitsAxesIntoPrimesAscending) {
  const GridPtr grid = Grid::Of(MeshOf({2, 12, 1, 5}, {"data", "model", "one", "x"}));
  EXPECT_THAT(Sizes(*grid), ElementsAre(2, 2, 2, 3, 5));
  EXPECT_EQ(grid->axis(3).axis, "model");
  EXPECT_EQ(grid->axis(3).index, 2);
  EXPECT_EQ(grid->num_devices(), 120);
  EXPECT_EQ(grid->SizeOfMask(0b01011), 12);
}

TEST(GridTest, CoordinatesAreTheMeshs) {
  const Mesh mesh = MeshOf({4, 3, 6}, {"a", "b", "c"});
  const GridPtr grid = Grid::Of(mesh);
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const auto axes = grid->AxesOf(mesh, axis);
    ASSERT_TRUE(axes.ok()) << axes.status();
    for (int64_t p = 0; p < mesh.size(); ++p) {
      EXPECT_EQ(grid->Coordinate(p, *axes), MeshCoordinate(mesh, axis, p));
    }
  }
}

TEST(GridTest, WithCoordinateChangesOnlyTheAxesNamed) {
  const GridPtr grid = Grid::Of(MeshOf({4, 3, 2}, {"a", "b", "c"}));
  std::mt19937 rng(5);
  for (int i = 0; i < 500; ++i) {
    AxisList axes, rest;
    std::vector<AxisId> all = {0, 1, 2, 3};
    std::shuffle(all.begin(), all.end(), rng);
    const size_t count = rng() % 5;
    for (size_t k = 0; k < 4; ++k) (k < count ? axes : rest).push_back(all[k]);
    const int64_t position = static_cast<int64_t>(rng() % 24);
    const int64_t value = static_cast<int64_t>(rng() % grid->size(axes));
    const int64_t moved = grid->WithCoordinate(position, axes, value);
    EXPECT_EQ(grid->Coordinate(moved, axes), value);
    EXPECT_EQ(grid->Coordinate(moved, rest), grid->Coordinate(position, rest));
  }
}

TEST(GridTest, MeshesThatRefineShareAGrid) {
  const Mesh a = MeshOf({2, 4}, {"data", "model"});
  const Mesh b = MeshOf({8}, {"x"});
  const Grid::Common common = Grid::ForMeshes({a, b});
  ASSERT_EQ(common.grids.size(), 1u);
  EXPECT_THAT(common.grid_of, ElementsAre(0, 0));
  const Grid& grid = *common.grids[0];
  EXPECT_THAT(Sizes(grid), ElementsAre(2, 2, 2));
  EXPECT_EQ(grid.axis(0).axis, "data");
  EXPECT_EQ(grid.axis(2).axis, "model");
  EXPECT_THAT(*grid.AxesOf(b, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(*grid.AxesOf(a, 1), ElementsAre(1, 2));
}

TEST(GridTest, TheFirstMeshNamesTheSubAxes) {
  const Grid::Common common = Grid::ForMeshes({MeshOf({6}, {"x"}), MeshOf({3, 2}, {"a", "b"})});
  ASSERT_EQ(common.grids.size(), 1u);
  EXPECT_THAT(Sizes(*common.grids[0]), ElementsAre(3, 2));
  EXPECT_EQ(common.grids[0]->axis(1).axis, "x");
}

TEST(GridTest, MeshesThatDoNotRefineGetGridsOfTheirOwn) {
  const Mesh other_order = *Mesh::Create({1, 0, 2, 3, 4, 5}, {2, 3}, std::nullopt);
  const Grid::Common common = Grid::ForMeshes({
      MeshOf({2, 3}, {"a", "b"}),
      MeshOf({3, 2}, {"a", "b"}),  // other strides
      other_order,                 // other order
      MeshOf({3}, {"a"}),          // a subset
      MeshOf({6}, {"x"}),          // refines with the first
      MeshOf({2, 3}, {"p", "q"}, 6),
  });
  EXPECT_THAT(common.grid_of, ElementsAre(0, 1, 2, 3, 0, 4));
  EXPECT_EQ(common.grids.size(), 5u);
}

TEST(GridTest, EveryMeshCanBeWrittenInItsCommonGrid) {
  const auto shapes = Factorisations(24);
  std::mt19937 rng(6);
  for (int i = 0; i < 200; ++i) {
    std::vector<Mesh> meshes;
    for (size_t n = 1 + rng() % 4; n > 0; --n) {
      const std::vector<int64_t>& shape = shapes[rng() % shapes.size()];
      std::vector<std::string> names;
      for (size_t k = 0; k < shape.size(); ++k) names.push_back(absl::StrCat("m", n, "_", k));
      meshes.push_back(MeshOf(shape, names));
    }
    const Grid::Common common = Grid::ForMeshes(meshes);
    for (size_t m = 0; m < meshes.size(); ++m) {
      const Grid& grid = *common.grids[common.grid_of[m]];
      EXPECT_TRUE(grid.Refines(meshes[m]));
      for (int axis = 0; axis < meshes[m].rank(); ++axis) {
        const auto axes = grid.AxesOf(meshes[m], axis);
        ASSERT_TRUE(axes.ok()) << axes.status();
        for (int64_t p = 0; p < 24; ++p) {
          EXPECT_EQ(grid.Coordinate(p, *axes), MeshCoordinate(meshes[m], axis, p));
        }
      }
    }
  }
}

TEST(GridTest, AxesOfRefusesWhatTheGridCannotSay) {
  const GridPtr grid = Grid::Of(MeshOf({2, 3}, {"a", "b"}));
  EXPECT_EQ(grid->AxesOf(MeshOf({3, 2}, {"a", "b"}), 0).status().message(),
            "mesh [a=3, b=2] over devices 0..5 cannot be written in grid [a=2, b=3]; it needs a "
            "grid of its own");
  EXPECT_EQ(grid->AxesOf(MeshOf({2, 3}, {"a", "b"}), 2).status().message(),
            "mesh [a=2, b=3] has 2 axes; there is no axis 2");
}

TEST(GridTest, SingleDeviceHasNoAxes) {
  const GridPtr grid = Grid::SingleDevice();
  EXPECT_EQ(grid->num_axes(), 0);
  EXPECT_THAT(grid->device_ids(), ElementsAre(0));
  EXPECT_EQ(grid->ToString(), "[]");
  EXPECT_TRUE(grid->Refines(MeshOf({1}, {"x"})));
}

TEST(GridTest, TheSlowestAxisThatASubAxisIsPartOfCounts) {
  const std::vector<int64_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const Mesh flat = *Mesh::Create(ids, {8}, {{"x"}});
  const Mesh nodes = *Mesh::Create(ids, {2, 4}, {{"node", "gpu"}}, {{0.1, 1}});
  const GridPtr one = Grid::Of(nodes);
  EXPECT_EQ(one->axis(0).bandwidth, 0.1);
  EXPECT_EQ(one->axis(1).bandwidth, 1);
  EXPECT_EQ(one->ToString(), "[node=2@0.1, gpu=4]");
  const GridPtr both = Grid::ForMeshes({flat, nodes}).grids[0];
  EXPECT_EQ(both->ToString(), "[x=2@0.1*2*2]");
  EXPECT_EQ(*both, *one) << "a bandwidth says nothing about who holds what";
  for (const char* text : {"[node=2@0.1, gpu=4]", "[x=2@0.1*2*2]", "[x=8@0.001]", "[x=3@2*2@2]"}) {
    EXPECT_EQ((*Grid::Parse(text))->ToString(), text);
  }
}

TEST(GridTest, MasksAreSetsOfAxes) {
  EXPECT_EQ(MaskOf(AxisList{0, 3}), 0b1001u);
  EXPECT_EQ(MaskOf(AxisId{5}), 0b100000u);
}

}  // namespace
}  // namespace spmd
