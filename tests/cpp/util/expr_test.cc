// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/expr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "csrc/util/dims.h"

namespace spmd {
namespace {

using Op = Expr::Op;

const Expr kStart = Expr::Start(Operand(0), 1);

Expr::Env EnvOf(int64_t start, int64_t size) {
  Expr::Env env;
  env.start = [start](TensorRef t, int dim) { return start + 100 * t.index + dim; };
  env.size = [size](TensorRef t, int dim) { return size + t.index + dim; };
  env.extent = [](TensorRef t, int dim) { return 1000 + t.index + dim; };
  env.coord = [](int axis) { return axis + 1; };
  return env;
}

TEST(ExprTest, Prints) {
  EXPECT_EQ(kStart.ToString(), "start(o0,1)");
  EXPECT_EQ(Expr::Size(Result(2), 0).ToString(), "size(r2,0)");
  EXPECT_EQ(Expr::Extent(Operand(1), 3).ToString(), "extent(o1,3)");
  EXPECT_EQ(Expr::Coord(4).ToString(), "coord(4)");
  EXPECT_EQ(Max(Expr::Start(Result(0), 0) * 2 - 1, 0).ToString(), "max(start(r0,0)*2-1,0)");
  EXPECT_EQ((kStart - (kStart + Expr::Coord(0))).ToString(), "start(o0,1)-(start(o0,1)+coord(0))");
  EXPECT_EQ(((kStart + 3) * 2).ToString(), "(start(o0,1)+3)*2");
  EXPECT_EQ((5 - kStart).ToString(), "5-start(o0,1)");
  EXPECT_EQ((kStart * -2).ToString(), "start(o0,1)*-2");
  EXPECT_EQ(FloorDiv(kStart, 2).ToString(), "floordiv(start(o0,1),2)");
  EXPECT_EQ(CeilDiv(kStart, Expr::Size(Operand(0), 0)).ToString(),
            "ceildiv(start(o0,1),size(o0,0))");
}

TEST(ExprTest, FoldsConstants) {
  EXPECT_EQ(Expr(2) + Expr(3) * Expr(4), Expr(14));
  EXPECT_EQ(FloorDiv(Expr(-7), Expr(2)), Expr(-4));
  EXPECT_EQ(CeilDiv(Expr(-7), Expr(2)), Expr(-3));
  EXPECT_EQ(kStart + 0, kStart);
  EXPECT_EQ(1 * kStart, kStart);
  EXPECT_EQ(kStart * 0, Expr(0));
  EXPECT_EQ(CeilDiv(kStart, 1), kStart);
  EXPECT_EQ(kStart - kStart, Expr(0));
  EXPECT_EQ(Min(kStart, kStart), kStart);
}

TEST(ExprTest, EqualShiftsAreEqualHoweverBuilt) {
  EXPECT_EQ((kStart - 1) + 3, 2 + kStart);
  EXPECT_EQ(3 * (kStart * 2), kStart * 6);
  EXPECT_EQ(Max(Max(kStart, 2), 5), Max(5, kStart));
  EXPECT_NE(kStart + 1, kStart + 2);
  EXPECT_NE(Expr::Start(Operand(0), 1), Expr::Start(Result(0), 1));
  EXPECT_NE(Expr::Start(Operand(0), 1), Expr::Size(Operand(0), 1));
}

TEST(ExprTest, EvaluatesVariables) {
  const Expr::Env env = EnvOf(10, 4);
  EXPECT_EQ(Expr::Start(Operand(2), 3).Evaluate(env), 213);
  EXPECT_EQ(Expr::Extent(Result(1), 0).Evaluate(env), 1001);
  EXPECT_EQ((Expr::Coord(5) * 2 - kStart).Evaluate(env), 1);
  EXPECT_EQ(CeilDiv(kStart, Expr::Size(Operand(0), 0) - 4).Evaluate(env), 0);
}

TEST(ExprTest, ForEachVariableGoesLeftToRight) {
  std::vector<std::string> seen;
  Max(kStart + Expr::Coord(2), 7 - Expr::Size(Result(0), 0)).ForEachVariable([&](const Expr& e) {
    seen.push_back(e.ToString());
  });
  EXPECT_THAT(seen, ::testing::ElementsAre("start(o0,1)", "coord(2)", "size(r0,0)"));
}

// A random tree, and its value computed beside it.
struct Sample {
  Expr expr;
  int64_t value;
};

Sample RandomExpr(std::mt19937& rng, const Expr::Env& env, int depth) {
  auto pick = [&](int n) { return static_cast<int>(rng() % n); };
  if (depth == 0 || pick(4) == 0) {
    Expr leaf = 0;
    switch (pick(5)) {
      case 0:
        leaf = Expr(pick(21) - 10);
        break;
      case 1:
        leaf = Expr::Start(Operand(pick(3)), pick(3));
        break;
      case 2:
        leaf = Expr::Size(Result(pick(2)), pick(3));
        break;
      case 3:
        leaf = Expr::Extent(Operand(pick(3)), pick(3));
        break;
      default:
        leaf = Expr::Coord(pick(4));
        break;
    }
    return {leaf, leaf.Evaluate(env)};
  }
  const Sample a = RandomExpr(rng, env, depth - 1);
  const Sample b = RandomExpr(rng, env, depth - 1);
  const int64_t d = pick(6) + 1;
  switch (pick(7)) {
    case 0:
      return {a.expr + b.expr, a.value + b.value};
    case 1:
      return {a.expr - b.expr, a.value - b.value};
    case 2:
      return {a.expr * Expr(d), a.value * d};
    case 3:
      return {FloorDiv(a.expr, d), FloorDiv(a.value, d)};
    case 4:
      return {CeilDiv(a.expr, d), CeilDiv(a.value, d)};
    case 5:
      return {Min(a.expr, b.expr), std::min(a.value, b.value)};
    default:
      return {Max(a.expr, b.expr), std::max(a.value, b.value)};
  }
}

TEST(ExprTest, FoldingKeepsTheValueAndTextRoundTrips) {
  std::mt19937 rng(1);
  for (int i = 0; i < 3000; ++i) {
    const Expr::Env env = EnvOf(static_cast<int64_t>(rng() % 50), static_cast<int64_t>(rng() % 9));
    const Sample sample = RandomExpr(rng, env, 5);
    EXPECT_EQ(sample.expr.Evaluate(env), sample.value) << sample.expr.ToString();
    const auto parsed = Expr::Parse(sample.expr.ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, sample.expr);
    EXPECT_EQ(parsed->Hash(), sample.expr.Hash());
    EXPECT_EQ(parsed->ToString(), sample.expr.ToString());
  }
}

TEST(ExprTest, ExtremeNumbersRoundTrip) {
  for (int64_t n : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (const Expr& e : {Expr(n), kStart + n, kStart * n, kStart - n}) {
      const auto parsed = Expr::Parse(e.ToString());
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(*parsed, e);
    }
  }
}

}  // namespace
}  // namespace spmd
