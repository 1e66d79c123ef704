// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/axis_part.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spmd {
namespace {

Mesh SomeMesh(std::vector<int64_t> shape, std::vector<std::string> names) {
  int64_t devices = 1;
  for (const int64_t n : shape) devices *= n;
  std::vector<int64_t> ids(devices);
  for (int64_t i = 0; i < devices; ++i) ids[i] = i;
  return *Mesh::Create(ids, shape, names);
}

TEST(AxisPart, ByNumberOfThePrimeFactor) {
  const Mesh mesh = SomeMesh({2, 12}, {"a", "b"});
  const auto part = ParseAxisPart("b:2", mesh);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->axis, 1);
  EXPECT_EQ(part->before, 4);
  EXPECT_EQ(part->size, 3);
}

TEST(AxisPart, BySizes) {
  const Mesh mesh = SomeMesh({12}, {"b"});
  const auto part = ParseAxisPart("b:(2)6", mesh);
  ASSERT_TRUE(part.ok());
  const GridPtr grid = Grid::Of(mesh);
  EXPECT_EQ(grid->AxesToString(*AxesOfPart(*part, mesh, *grid)), "b:1,b:2");
  // 3 * 4 is no division of 2 * 2 * 3.
  EXPECT_FALSE(AxesOfPart(*ParseAxisPart("b:(3)4", mesh), mesh, *grid).has_value());
  const GridPtr other = GridWithParts(mesh, {"b:(3)4"});
  ASSERT_TRUE(AxesOfPart(*ParseAxisPart("b:(3)4", mesh), mesh, *other).has_value());
}

TEST(AxisPart, NamesAreOfTheMeshWhateverTheGrid) {
  const Mesh small = SomeMesh({2, 4}, {"data", "model"}), large = SomeMesh({8}, {"x"});
  const Grid::Common common = Grid::ForMeshes({small, large});
  const Grid& grid = *common.grids[0];
  EXPECT_EQ(NameOfPart(1, small, grid), "model:0");
  EXPECT_EQ(NameOfPart(1, large, grid), "x:1");
}

TEST(AxisPart, WhatIsNotThere) {
  const Mesh mesh = SomeMesh({4, 3}, {"a", "b"});
  EXPECT_EQ(ParseAxisPart("a:2", mesh).status().message(),
            "axis 'a' has the parts 'a:0' of size 2, 'a:1' of size 2 in mesh [a=4, b=3]");
  EXPECT_EQ(ParseAxisPart("b:1", mesh).status().message(),
            "axis 'b' has no parts in mesh [a=4, b=3]");
  for (const char* name : {"a:", "a:-1", "a:(2)", "a:(3)2", "a:(2)4", "a:(0)2", "a:0x", "a:(9"}) {
    EXPECT_FALSE(ParseAxisPart(name, mesh).ok()) << name;
  }
  EXPECT_FALSE(ParseAxisPart("c:0", mesh).ok());
}

}  // namespace
}  // namespace spmd
