// SPDX-License-Identifier: Apache-2.0
// The text forms of grids and of lists of their axes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/hash/hash.h"
#include "csrc/mesh/grid.h"
#include "tests/cpp/mesh/meshes.h"

namespace spmd {
namespace {

using ::testing::HasSubstr;

TEST(GridText, AxesPrintAndParse) {
  const GridPtr grid = Grid::Of(MeshOf({2, 8}, {"data", "model"}));
  const std::vector<std::pair<AxisList, std::string>> cases = {
      {{}, ""},
      {{0}, "data"},
      {{1, 2, 3}, "model"},
      {{1}, "model:0"},
      {{0, 2}, "data,model:1"},
      {{1, 2, 3, 0}, "model,data"},
      {{3, 2}, "model:2,model:1"},
      {{2, 1, 3}, "model:1,model:0,model:2"}};
  for (const auto& [axes, text] : cases) {
    EXPECT_EQ(grid->AxesToString(axes), text);
    const auto parsed = grid->ParseAxes(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, axes);
  }
}

TEST(GridText, UnknownAxesAreNamed) {
  const GridPtr grid = Grid::Of(MeshOf({2, 4}, {"data", "model"}));
  EXPECT_EQ(grid->ParseAxes("modle").status().message(),
            "grid [data=2, model=4] has no axis 'modle'; did you mean 'model'?");
  EXPECT_EQ(grid->ParseAxes("model:2").status().message(),
            "expected a sub-axis of 'model', model:0 to model:1 at 'model:2' in 'model:2'");
  EXPECT_THAT(std::string(grid->ParseAxes("data,").status().message()),
              HasSubstr("expected an axis"));
}

TEST(GridText, TextRoundTrips) {
  std::mt19937 rng(7);
  const auto shapes = Factorisations(12);
  for (int i = 0; i < 300; ++i) {
    std::vector<int64_t> ids(12);
    std::iota(ids.begin(), ids.end(), static_cast<int64_t>(rng() % 3));
    if (rng() % 2) std::shuffle(ids.begin() + rng() % 8, ids.end(), rng);
    const auto& first = shapes[rng() % shapes.size()];
    const auto& second = shapes[rng() % shapes.size()];
    const Grid::Common common = Grid::ForMeshes(
        {*Mesh::Create(ids, first, std::nullopt), *Mesh::Create(ids, second, std::nullopt)});
    for (const GridPtr& grid : common.grids) {
      const auto parsed = Grid::Parse(grid->ToString());
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(**parsed, *grid) << grid->ToString();
      EXPECT_EQ(absl::HashOf(**parsed), absl::HashOf(*grid));
    }
  }
}

TEST(GridText, PrintsDevicesAndPartsWhereTheyAreNotTheUsual) {
  EXPECT_EQ(Grid::Of(MeshOf({2, 4}, {"data", "model"}))->ToString(), "[data=2, model=4]");
  EXPECT_EQ(Grid::Of(MeshOf({2, 2}, {"a", "b"}, 8))->ToString(), "[a=2, b=2] devices=[8..11]");
  EXPECT_EQ(Grid::Of(*Mesh::Create({3, 1, 4, 5, 6, 9}, {6}, std::nullopt))->ToString(),
            "[axis0=6] devices=[3,1,4..6,9]");
  const Grid::Common common = Grid::ForMeshes({MeshOf({6}, {"x"}), MeshOf({3, 2}, {"a", "b"})});
  EXPECT_EQ(common.grids[0]->ToString(), "[x=3*2]");
}

TEST(GridText, BadTextIsRefused) {
  for (const char* text :
       {"", "[", "[a]", "[a=0]", "[a=2, a=3]", "[a=2] devices=[0]", "[a=2] devices=[1,1]",
        "[a=9999999999]", "[a=2] devices=[5..4]", "[a=2] more", "[a=2*]", "[a=1024, b=2048]",
        "[a=-2]", "[a=2@]", "[a=2@0]", "[a=2@-1]"}) {
    EXPECT_EQ(Grid::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace spmd
