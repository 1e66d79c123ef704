// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/places.h"

#include <gtest/gtest.h>

#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/moves.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

// Four devices in two processes, all of which are this one.
class TwoProcesses : public AtenBackend {
 public:
  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return 4; }
  bool elastic() const override { return false; }
  const machine::Machine& machine() const override { return machine_; }
  Place place(int64_t id) const override {
    return {c10::Device(c10::kCPU), static_cast<int>(id / 2)};
  }
  bool has_one_place() const override { return false; }
  std::string Describe() const override { return name_; }

 private:
  std::string name_ = "two";
  machine::Machine machine_;
};

TEST(Place, IsAProcessAndADevice) {
  const Place here{c10::Device(c10::kCPU)};
  EXPECT_EQ(here, (Place{c10::Device(c10::kCPU), 0}));
  EXPECT_NE(here, (Place{c10::Device(c10::kCPU), 1}));
  EXPECT_NE(here, (Place{c10::Device(c10::kMeta), 0}));
}

TEST(Places, ProcessesHaveTilesOfTheirOwn) {
  const TwoProcesses backend;
  const GridPtr all = MakeGrid({4}, {"a"});
  EXPECT_TRUE(NeedsPositions(*all, backend));
  const GridPtr first = MakeGrid({2}, {"a"});
  EXPECT_FALSE(NeedsPositions(*first, backend));
}

TEST(Places, ATileOfAnotherProcessIsCopied) {
  const TwoProcesses backend;
  const GridPtr grid = MakeGrid({4}, {"a"});
  const Layout cut(grid, *Sharding::Parse("{a}", *grid), {8});
  const Layout whole(grid, *Sharding::Parse("{}", *grid), {8});
  // Devices 0 and 1 hold the same; devices 2 and 3 hold it in another process.
  const MovePlan same = MovePlan::Make(Placement(whole, true), Placement(whole, true), backend);
  for (const TileMove& tile : same.tiles) EXPECT_EQ(tile.action, TileMove::Action::kShare);
  const MovePlan gather = MovePlan::Make(Placement(cut, true), Placement(whole, true), backend);
  EXPECT_EQ(gather.tiles[3].place, (Place{c10::Device(c10::kCPU), 1}));
  // Tiles by number are those of the first device, in process 0.
  const MovePlan sliced = MovePlan::Make(Placement(whole, false), Placement(cut, true), backend);
  EXPECT_EQ(sliced.tiles[1].action, TileMove::Action::kView);
  EXPECT_EQ(sliced.tiles[2].action, TileMove::Action::kCopy);
}

}  // namespace
}  // namespace spmd::runtime
