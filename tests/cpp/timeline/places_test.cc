// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/timeline/ring_system.h"

namespace spmd::timeline {
namespace {

using ::testing::ElementsAre;

Places PlacesOf(const char* meshes, const char* system) {
  const auto program = program::Program::Parse(std::string(meshes) +
                                               "program {\n %a: f32[8] @m {}\n return %a\n}\n");
  EXPECT_TRUE(program.ok()) << program.status();
  auto places = Places::Of(*program, *machine::ParseSystem(system));
  EXPECT_TRUE(places.ok()) << places.status();
  return *std::move(places);
}

TEST(PlacesTest, AnAxisLiesOnARingOfTheSlice) {
  const Places places = PlacesOf("mesh @m [data=4, model=4]\n", "v5e-16");
  EXPECT_THAT(places.Describe(), testing::SizeIs(2));
  EXPECT_THAT(places.DeviceOrder(), testing::SizeIs(16));
}

TEST(PlacesTest, AnOrderThatIsGivenIsTaken) {
  const Places places = PlacesOf("mesh @m [x=2, y=2] devices=[0,2,1,3]\n", "4xh100");
  EXPECT_THAT(places.DeviceOrder(), ElementsAre(0, 2, 1, 3));
}

TEST(PlacesTest, TheLargestMeshIsPlacedAndTheOthersAreOfItsDevices) {
  const Places places = PlacesOf("mesh @n [p=2] devices=[6,7]\nmesh @m [x=8]\n", "8xh100");
  EXPECT_THAT(places.Describe(), testing::SizeIs(1));
  EXPECT_THAT(places.DeviceOrder(), testing::SizeIs(8));
}

TEST(PlacesTest, AMeshThatDoesNotFitIsAnError) {
  const auto program = program::Program::Parse(
      "mesh @m [x=3]\nprogram {\n  %a: f32[3] @m {x}\n"
      "  %0: f32[3] @m {x} = call aten::exp(%a)\n  return %0\n}\n");
  EXPECT_EQ(Predict(*program, RingSystem()).status().message(),
            "a mesh of 3 devices does not divide test, which has 4");
}

}  // namespace
}  // namespace spmd::timeline
