// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/move.h"

#include <gtest/gtest.h>

#include <random>

#include "csrc/machine/machine.h"
#include "csrc/sharding/layout.h"

namespace spmd::cost {
namespace {

GridPtr MakeGrid(std::vector<int64_t> shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  std::vector<int64_t> ids(n);
  for (int64_t i = 0; i < n; ++i) ids[i] = i;
  return Grid::Of(*Mesh::Create(ids, shape, std::nullopt));
}

// A random sharding over the grid's axes, some of them unreduced.
Sharding RandomSharding(const Grid& grid, int rank, bool terms, std::mt19937& rng) {
  Sharding s = Sharding::Replicated(rank);
  std::vector<AxisId> axes;
  for (int a = 0; a < grid.num_axes(); ++a) axes.push_back(static_cast<AxisId>(a));
  std::shuffle(axes.begin(), axes.end(), rng);
  for (AxisId a : axes) {
    const int where = static_cast<int>(rng() % (rank + 2));
    if (where < rank) s.dims[where].axes.push_back(a);
    if (where == rank && terms) s.unreduced.push_back(a);
  }
  std::sort(s.unreduced.begin(), s.unreduced.end());
  return s;
}

// Every element that a device holds after the step was held, before it, by a device of its group
// (devices that differ in the step's axes only), with all partial sums of it if they are reduced.
void CheckStep(const GridPtr& grid, const TensorType& type, const Sharding& before,
               const MoveStep& step) {
  if (step.kind == MoveKind::kExchange || step.kind == MoveKind::kPermute ||
      step.kind == MoveKind::kTerm)
    return;
  const Layout from(grid, before, type.dims);
  const Layout to(grid, step.result, type.dims);
  const int64_t group = step.kind == MoveKind::kSlice ? 1 : grid->size(step.axes);
  const AxisList axes = step.kind == MoveKind::kSlice ? AxisList{} : step.axes;
  for (int64_t p = 0; p < grid->num_devices(); ++p) {
    const Box need = to.BoxAt(p);
    int64_t found = 0;
    for (int64_t i = 0; i < group; ++i) {
      const int64_t peer = axes.empty() ? p : grid->WithCoordinate(p, axes, i);
      found += NumElements(Intersect(need, from.BoxAt(peer)));
    }
    const bool reduces = step.kind == MoveKind::kAllReduce || step.kind == MoveKind::kReduceScatter;
    EXPECT_EQ(found, NumElements(need) * (reduces ? group : 1))
        << before.ToString(*grid) << " -> " << step.result.ToString(*grid) << " at " << p;
  }
}

TEST(PlanMove, StepsHoldWhatTheyClaimAndEndAtTheTarget) {
  std::mt19937 rng(7);
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{8}, {2, 4}, {2, 2, 2}, {3}, {6}, {2, 3}}) {
    const GridPtr grid = MakeGrid(shape);
    for (int trial = 0; trial < 300; ++trial) {
      TensorType type{DType::kF32, {}};
      const int rank = 1 + static_cast<int>(rng() % 3);
      for (int d = 0; d < rank; ++d) type.dims.push_back(1 + static_cast<int64_t>(rng() % 13));
      const Sharding from = RandomSharding(*grid, rank, true, rng);
      const Sharding to = RandomSharding(*grid, rank, false, rng);
      const MovePlan plan = PlanMove(type, *grid, from, to, machine::Nominal());
      Sharding at = from;
      for (const MoveStep& step : plan.steps) {
        CheckStep(grid, type, at, step);
        at = step.result;
      }
      EXPECT_TRUE(at.SamePlacement(to)) << at.ToString(*grid) << " is not " << to.ToString(*grid);
    }
  }
}

class Plans : public ::testing::Test {
 protected:
  std::string Kinds(const std::string& from, const std::string& to, Dims dims) {
    const TensorType type{DType::kF32, dims};
    const MovePlan plan = PlanMove(type, *grid_, *Sharding::Parse(from, *grid_),
                                   *Sharding::Parse(to, *grid_), machine::Nominal());
    static const char* const kNames[] = {"slice",    "all_gather", "all_to_all",     "permute",
                                         "exchange", "all_reduce", "reduce_scatter", "term"};
    std::string text;
    for (const MoveStep& s : plan.steps) {
      if (!text.empty()) text += " ";
      text +=
          std::string(kNames[static_cast<int>(s.kind)]) + "(" + grid_->AxesToString(s.axes) + ")";
    }
    return text;
  }
  GridPtr grid_ = Grid::Of(
      *Mesh::Create({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4}, std::vector<std::string>{"data", "model"}));
};

TEST_F(Plans, FamiliarCollectivesAreRecognised) {
  EXPECT_EQ(Kinds("{data},{}", "{data},{}", {8, 8}), "");
  EXPECT_EQ(Kinds("{},{}", "{data},{}", {8, 8}), "slice(data)");
  EXPECT_EQ(Kinds("{model},{}", "{},{}", {8, 8}), "all_gather(model)");
  EXPECT_EQ(Kinds("{model},{}", "{},{model}", {8, 8}), "all_to_all(model)");
  EXPECT_EQ(Kinds("{},{} unreduced(sum){model}", "{},{}", {8, 8}), "all_reduce(model)");
  EXPECT_EQ(Kinds("{},{} unreduced(sum){model}", "{model},{}", {8, 8}), "reduce_scatter(model)");
  EXPECT_EQ(Kinds("{data},{} unreduced(sum){model}", "{data,model},{}", {8, 8}),
            "reduce_scatter(model)");
  EXPECT_EQ(Kinds("{},{}", "{},{} unreduced(sum){model}", {8, 8}), "term(model)");
}

TEST_F(Plans, WhatIsReducedIsCutFirst) {
  EXPECT_EQ(Kinds("{},{} unreduced(sum){model}", "{data},{}", {8, 8}),
            "slice(data) all_reduce(model)");
}

TEST_F(Plans, AnOrderOfAxesIsAPermute) {
  EXPECT_EQ(Kinds("{data,model}", "{model,data}", {8}), "permute()");
  EXPECT_EQ(Kinds("{model} unreduced(sum){data}", "{data,model}", {1 << 20}),
            "reduce_scatter(data) permute()");
}

TEST_F(Plans, WhatIsKeptIsSentOnly) {
  EXPECT_EQ(Kinds("{data,model},{},{}", "{},{data},{model}", {8, 8, 8}), "exchange()");
  EXPECT_EQ(Kinds("{data},{}", "{model},{data}", {8, 8}), "exchange()");
}

TEST_F(Plans, BoundariesMoveBeforeTermsAreScattered) {
  EXPECT_EQ(Kinds("{data} unreduced(sum){model}", "{data,model}", {(1 << 20) + 1}),
            "exchange() reduce_scatter(model)");
}

// On more sub-axes than are distinguished one by one.
TEST(PlanMove, EndsAtTheTargetOnLargeMeshes) {
  std::mt19937 rng(8);
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{8, 8}, {32, 8}, {2, 2, 2, 2, 2}, {512}, {64, 64}}) {
    const GridPtr grid = MakeGrid(shape);
    for (int trial = 0; trial < 300; ++trial) {
      TensorType type{DType::kF32, {}};
      const int rank = static_cast<int>(rng() % 4);
      for (int d = 0; d < rank; ++d) type.dims.push_back(1 + static_cast<int64_t>(rng() % 90));
      const Sharding from = RandomSharding(*grid, rank, true, rng);
      const Sharding to = RandomSharding(*grid, rank, true, rng);
      const MovePlan plan = PlanMove(type, *grid, from, to, machine::Nominal());
      ASSERT_EQ(
          plan.steps.empty() ? from.ToString(*grid) : plan.steps.back().result.ToString(*grid),
          to.ToString(*grid));
    }
  }
}

TEST_F(Plans, TermsOfAnotherKindAreReducedFirst) {
  EXPECT_EQ(Kinds("{},{} unreduced(sum){data}", "{},{} unreduced(max){data}", {8, 8}),
            "all_reduce(data) term(data)");
  EXPECT_EQ(Kinds("{},{} unreduced(sum){data}", "{},{} unreduced(sum){data,model}", {8, 8}),
            "term(model)");
}

TEST_F(Plans, IdleAxesShareAReduction) {
  const std::string terms = "{},{} unreduced(sum){model}";
  EXPECT_EQ(Kinds(terms, "{},{}", {8, 8}), "all_reduce(model)");
  EXPECT_EQ(Kinds(terms, "{},{}", {4096, 4096}), "slice(data) all_reduce(model) all_gather(data)");
}

class SlowAxis : public Plans {
 protected:
  SlowAxis() { grid_ = *Grid::Parse("[node=2@0.1, gpu=4]"); }
};

TEST_F(SlowAxis, FastAxesMakeThePieceSmallerThatGoesOverIt) {
  const std::string terms = "{},{} unreduced(sum){node,gpu}";
  EXPECT_EQ(Kinds(terms, "{},{}", {8, 8}), "all_reduce(node,gpu)");
  EXPECT_EQ(Kinds(terms, "{},{}", {4096, 4096}),
            "reduce_scatter(gpu) all_reduce(node) all_gather(gpu)");
  EXPECT_EQ(Kinds("{node},{}", "{},{}", {4096, 4096}),
            "slice(gpu) all_gather(node) all_gather(gpu)");
  EXPECT_EQ(Kinds("{gpu,node},{}", "{},{}", {4096, 4096}), "all_gather(node) all_gather(gpu)");
}

TEST_F(Plans, BoundariesThatDoNotMergeAreExchanged) {
  // Ten rows by eight are chunks of two, by two chunks of five.
  EXPECT_EQ(Kinds("{data,model}", "{data}", {10}), "exchange()");
  EXPECT_EQ(Kinds("{data,model}", "{}", {10}), "all_gather(data,model)");
}

}  // namespace
}  // namespace spmd::cost
