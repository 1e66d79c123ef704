// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/factor_cut.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace spmd::propagate {
namespace {

GridPtr Line(int64_t n) {
  std::vector<int64_t> ids(n);
  for (int64_t i = 0; i < n; ++i) ids[i] = i;
  return Grid::Of(*Mesh::Create(ids, {n}, std::vector<std::string>{"x"}));
}

// One tensor of one dimension that is the compound (a b).
struct Compound {
  rules::OpFactors factors;
  rules::TensorFactors tensor = {{0, 1}};
  Dims dims;
  Compound(int64_t a, int64_t b) : dims{a * b} {
    factors.factors = {{a}, {b}};
    factors.operands = {tensor};
  }
};

std::string Dealt(const Compound& c, const std::string& sharding, const Grid& grid) {
  const Cut cut = CutOf(c.factors, c.tensor, c.dims, *Sharding::Parse(sharding, grid), grid);
  std::string text;
  for (const FactorShard& s : cut) {
    absl::StrAppend(&text, "{", grid.AxesToString(s.axes));
    if (s.chunk != 0) absl::StrAppend(&text, " chunk=", s.chunk);
    text += "}";
  }
  return text;
}

TEST(CutOf, DealsAxesMajorFirst) {
  const GridPtr grid = Line(8);
  EXPECT_EQ(Dealt(Compound(4, 6), "{x}", *grid), "{x:0,x:1}{x:2}");
  EXPECT_EQ(Dealt(Compound(16, 4), "{x}", *grid), "{x}{}");
  EXPECT_EQ(Dealt(Compound(6, 64), "{x:0,x:1}", *grid), "{x:0}{}");
  EXPECT_EQ(Dealt(Compound(3, 64), "{x}", *grid), "{}{}");
}

TEST(CutOf, UnevenMajorNeedsItsChunk) {
  const GridPtr grid = Line(8);
  EXPECT_EQ(Dealt(Compound(5, 64), "{x}", *grid), "{}{}");
  EXPECT_EQ(Dealt(Compound(5, 64), "{x chunk=64}", *grid), "{x}{}");
}

// A convolution of stride 2: sixteen rows in, eight out.
TEST(CutOf, WindowsHaveDefaultShardsOnBothSides) {
  const GridPtr grid = Line(4);
  rules::OpFactors factors;
  factors.factors = {{8}};
  const rules::TensorFactors tensor = {{0}};
  const Cut cut = CutOf(factors, tensor, Dims{16}, *Sharding::Parse("{x}", *grid), *grid);
  EXPECT_EQ(cut[0].axes.size(), 2u);
  EXPECT_EQ(cut[0].chunk, 0);
  const std::optional<Sharding> back = ShardingUnder(factors, tensor, Dims{16}, cut, *grid);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->ToString(*grid), "{x}");
}

// A filter of four taps: `rows` in, one more out.
rules::OpFactors Filter(int64_t rows) {
  rules::OpFactors factors;
  factors.factors = {{rows + 1}};
  const Expr start = Expr::Start(Result(0), 0);
  const Expr end = start + Expr::Size(Result(0), 0);
  factors.windows = {
      {.dim = 0, .factor = 0, .extent = rows + 1, .begin = start - 2, .end = end + 1}};
  return factors;
}

TEST(CutOf, RowsThatDoNotDivideKeepTheBoundariesOfWhatTheyAreReadFrom) {
  const GridPtr grid = Line(8);
  const rules::TensorFactors tensor = {{0}};
  for (const auto& [rows, chunk] : {std::pair<int64_t, int64_t>{1024, 128}, {32, 4}, {1023, 0}}) {
    const rules::OpFactors factors = Filter(rows);
    const Cut cut = CutOf(factors, tensor, Dims{rows}, *Sharding::Parse("{x}", *grid), *grid);
    EXPECT_EQ(cut[0].chunk, chunk) << rows;
    const std::optional<Sharding> back = ShardingUnder(factors, tensor, Dims{rows}, cut, *grid);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->ToString(*grid), "{x}");
  }
}

TEST(CutOf, WhatIsEvenDoesNotFollowADefault) {
  const GridPtr grid = Line(8);
  rules::OpFactors factors = Filter(1023);  // 1024 out
  const Cut cut =
      CutOf(factors, {{0}}, Dims{1023}, *Sharding::Parse("{x chunk=120}", *grid), *grid);
  EXPECT_EQ(cut[0].chunk, 0);  // shards of 120 would leave 184 to the last
}

// Whatever ShardingUnder says, CutOf reads back.
TEST(ShardingUnder, RoundTrips) {
  const GridPtr grid = Line(8);
  for (int64_t a : {1, 2, 3, 4, 5, 6, 8, 9, 16}) {
    for (int64_t b : {2, 3, 4, 8}) {
      const Compound c(a, b);
      for (int taken = 1; taken <= 3; ++taken) {
        Cut cut(2);
        for (int i = 0; i < taken; ++i) cut[0].axes.push_back(static_cast<AxisId>(i));
        const std::optional<Sharding> s = ShardingUnder(c.factors, c.tensor, c.dims, cut, *grid);
        ASSERT_TRUE(s.has_value());
        const Cut back = CutOf(c.factors, c.tensor, c.dims, *s, *grid);
        // Shards of a whole row each may also be read as a sharding that continues into the next
        // factor.
        EXPECT_EQ(back[0].axes, cut[0].axes) << a << " x " << b << " by " << taken;
      }
    }
  }
}

TEST(ShardingUnder, RefusesWhatIsNoInterval) {
  const GridPtr grid = Line(8);
  const Compound c(4, 6);
  Cut minor_only(2);
  minor_only[1].axes = {0};
  EXPECT_FALSE(ShardingUnder(c.factors, c.tensor, c.dims, minor_only, *grid).has_value());
  Cut partly(2);
  partly[0].axes = {0};
  partly[1].axes = {1};
  EXPECT_FALSE(ShardingUnder(c.factors, c.tensor, c.dims, partly, *grid).has_value());
}

}  // namespace
}  // namespace spmd::propagate
