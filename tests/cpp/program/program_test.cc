// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_replace.h"
#include "csrc/program/analysis.h"
#include "tests/cpp/program/syntax.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::program {
namespace {

TEST(ProgramTest, FingerprintIgnoresNamesAndSourcesOnly) {
  const Program program = ParsedOf(kSyntax);
  const auto fingerprint = program.ComputeFingerprint();
  EXPECT_EQ(ParsedOf(program.ToString()).ComputeFingerprint(), fingerprint);
  const std::string renamed = absl::StrReplaceAll(
      kSyntax, {{"%img", "%image"}, {"%3", "%three"}, {"train.py:3", "other.py:9"}, {"@m", "@n"}});
  EXPECT_EQ(ParsedOf(renamed).ComputeFingerprint(), fingerprint);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"scalar $1: int", "scalar $1: bool"},
      {"7,6,2..5", "6,7,2..5"},
      {"added_once(2: model)", "added_once(2: model:0)"},
      {"%w: f32[256,128] @m {},{model} donated", "%w: f32[256,128] @m {},{model}"},
      {"of 33)", "of 32)"},
      {"of 16 chunk 5", "of 16 chunk 4"},
      {"start(r0,0)-1", "start(r0,0)-2"},
      {"fill(-inf)", "fill(inf)"},
      {"unreduced(max)", "unreduced(min)"},
      {"task(7)", "task(8)"},
      {"updates(0)", ""},
      {"\"tanh\"", "\"none\""},
      {"my::two(%x)", "my::two(%2)"},
      {"return %17 -> %w, %6, %17", "return %17, %6, %17"},
      {"free %7, %8, %w", "free %7, %8"}};
  for (const auto& [from, to] : changes) {
    const std::string changed = absl::StrReplaceAll(kSyntax, {{from, to}});
    ASSERT_NE(changed, kSyntax) << from;
    EXPECT_FALSE(ParsedOf(changed).ComputeFingerprint() == fingerprint) << from;
  }
}

TEST(ProgramTest, FingerprintDoesNotDependOnTheOrderOfCreation) {
  Program a = ParsedOf("mesh @m [x=2]\nprogram {\n%x: f32[4] @m {x}\nreturn %x\n}\n");
  Program b = a;
  Instruction gather;
  gather.code = OpCode::kAllGather;
  gather.axes = {0};
  gather.dim = 0;
  gather.operands = {0};
  const Value whole{{DType::kF32, {4}}, 0, Sharding::Replicated(1), {}, ""};
  gather.results = {a.AddValue(whole)};
  a.instructions.push_back(gather);
  b.AddValue(whole);  // defined by nothing
  gather.results = {b.AddValue(whole)};
  b.instructions.push_back(gather);
  EXPECT_EQ(a.ComputeFingerprint(), b.ComputeFingerprint());
  EXPECT_TRUE(Verify(b).ok()) << Verify(b);
}

TEST(ProgramTest, AddValueFindsAFreeNumber) {
  Program p = ParsedOf("mesh @m [x=2]\nprogram {\n%1: f32[4] @m {x}\nreturn %1\n}\n");
  const Value value{{DType::kF32, {4}}, 0, Sharding::Replicated(1), {}, ""};
  EXPECT_EQ(p.values[p.AddValue(value)].name, "2");
  EXPECT_EQ(p.values[p.AddValue(value)].name, "3");
  Value named = value;
  named.name = "mine";
  EXPECT_EQ(p.values[p.AddValue(named)].name, "mine");
}

TEST(ProgramTest, AddSourceNumbersLinesOnce) {
  Program p;
  EXPECT_EQ(p.AddSource("a.py:1"), 0);
  EXPECT_EQ(p.AddSource("a.py:2"), 1);
  EXPECT_EQ(p.AddSource("a.py:1"), 0);
}

TEST(ProgramTest, WindowsReachWhereTheirExpressionsSay) {
  // A 3-wide convolution of 10 rows over 4 shards of 3, 3, 3, 1; a strided one of 16 outputs.
  Program p = ParsedOf(R"(mesh @m [x=4]
program {
  %x: f32[10,2] @m {x},{}
  %h: f32[10,2] @m {x},{} window(0: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 10) = exchange(%x)
  %t: f32[10,2] @m {x},{} window(0: start(r0,0)*2..start(r0,0)*2+size(r0,0)*2-1 of 5) = exchange(%x)
  return %h
}
)");
  auto boxes = [&](ValueId id) {
    std::string out;
    for (int t = 0; t < 4; ++t) absl::StrAppend(&out, BoxToString(p.TileBox(id, t)));
    return out;
  };
  EXPECT_EQ(boxes(0), "[0:3, 0:2][3:6, 0:2][6:9, 0:2][9:10, 0:2]");
  EXPECT_EQ(boxes(1), "[-1:4, 0:2][2:7, 0:2][5:10, 0:2][8:11, 0:2]");
  EXPECT_EQ(boxes(2), "[0:3, 0:2][4:7, 0:2][8:9, 0:2][10:10, 0:2]");
  EXPECT_EQ(p.TileBytes(0), 3 * 2 * 4);
  EXPECT_EQ(p.TileBytes(1), 5 * 2 * 4);
  EXPECT_EQ(p.TileBytes(2), 3 * 2 * 4);
}

TEST(ProgramTest, WindowsInAnotherOrder) {
  const std::string text = R"(mesh @m [x=4]
program {
  %x: f32[6,2] @m {x},{}
  %r: f32[6,2] @m {x},{} window(0: start(r0,0)..start(r0,0)+size(r0,0) of 6 order(5..6,-1..0,0..4)) = exchange(%x)
  return %r
}
)";
  const Program p = ParsedOf(text);
  EXPECT_EQ(p.ToString(), text);
  const std::vector<Interval>& order = p.values[1].windows[0].order;
  EXPECT_EQ(order, (std::vector<Interval>{{5, 6}, {-1, 0}, {0, 4}}));
  EXPECT_EQ(InOrder(order, {0, 2}), (std::vector<Interval>{{5, 6}, {-1, 0}}));
  EXPECT_EQ(InOrder(order, {3, 5}), (std::vector<Interval>{{1, 3}}));
  EXPECT_EQ(InOrder({}, {3, 5}), (std::vector<Interval>{{3, 5}}));
  // Tiles of 2, 2, 2, 0 rows: the first lacks row 5, the second rows 0 and 1, the third 2 and 3 …
  const std::vector<Traffic> rows = CollectiveTraffic(p);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].wire_bytes, 2 * 2 * 4);
  Program wrong = p;
  wrong.values[1].windows[0].order.pop_back();
  EXPECT_FALSE(Verify(wrong).ok());
}

TEST(ProgramTest, TileBytesAreOfTheLargestTile) {
  std::mt19937 rng(42);
  for (int i = 0; i < 500; ++i) {
    const Layout layout = RandomLayout(rng);
    Program p;
    p.grids = {layout.grid()};
    p.grid_names = {"m"};
    Value value{{DType::kBF16, layout.dims()}, 0, layout.sharding(), {}, ""};
    for (int d = 0; d < layout.rank(); ++d) {
      if (rng() % 2) continue;
      WindowDim window;
      window.dim = d;
      window.extent = static_cast<int64_t>(rng() % 9);
      window.begin = Expr::Start(Result(0), 0) * 2 - static_cast<int64_t>(rng() % 3);
      window.end = (Expr::Start(Result(0), 0) + Expr::Size(Result(0), 0)) * 2;
      value.windows.push_back(window);
    }
    const ValueId id = p.AddValue(value);
    int64_t largest = 0;
    for (int64_t t = 0; t < layout.num_tiles(); ++t) {
      largest = std::max(largest, 2 * NumElements(p.TileBox(id, t)));
    }
    EXPECT_EQ(p.TileBytes(id), largest) << layout.ToString();
  }
}

}  // namespace
}  // namespace spmd::program
