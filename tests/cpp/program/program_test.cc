// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/program/analysis.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::program {
namespace {

using ::testing::HasSubstr;

Program ParsedOf(absl::string_view text) {
  auto program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *std::move(program) : Program();
}

// A program whose every clause of the syntax occurs.
constexpr char kSyntax[] = R"(mesh @m [data=2, model=4]
mesh @r [x=6] devices=[7,6,2..5]
program {
  scalar $0: float
  scalar $1: int
  %x: f32[32,128] @m {data},{model}
  %w: f32[256,128] @m {},{model} donated
  %b: f32[256] @m {}
  %s: f32[] @m
  %img: bf16[8,3,33,32] @m {data},{},{model},{}
  %0: f32[32,256] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model) at "train.py:3"
  %1: f32[32,256] @m {data},{} = all_reduce(%0) {model} at "train.py:3"
  free %0
  %2: f32[32,256] @m {data},{model} = slice(%1) {model} dim(1)
  %3: f32[32,256] @m {data},{} = all_gather(%2) {model} dim(1)
  %4: f32[32,256] @m {},{model,data} = all_to_all(%2) {data} dim(0) to(1)
  %5: f32[32,256] @m {},{data,model} = permute(%4)
  %6: f32[32,256] @r {x},{} = exchange(%1)
  %7: bf16[8,3,33,32] @m {data},{},{model},{} window(2: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 33) = exchange(%img) fill(-inf)
  %8: bf16[8,3,33,32] @m {data},{},{model},{} window(2: start(r0,0)*2..min(start(r0,0)*2+5,33) of 16 chunk 5) window(3: -1..33 of 32) = exchange(%img) fill(0.5)
  %9: f32[32,256] @m {data},{} unreduced(max){model} = term(%3) {model}
  %10: f32[32,256] @m {data},{model} = reduce_scatter(%9) {model} dim(1)
  %11: f32[8,64] @m {data},{} unreduced(sum){model}, %12: i64[] @m = call my::split([%x, _], %s, size=[size(r0,0),64], value=$0, dtype=bf16, approximate="tanh") task(7)
  %13: f32[32,128] @m {data},{} unreduced(sum){model}, %14: f32[] @m unreduced(sum){model} = call my::two(%x)
  %15: f32[32,128] @m {data},{}, %16: f32[] @m = all_reduce(%13, %14) {model}
  %17: f32[256,128] @m {},{model} = call aten::mul.Scalar(%w, other=$0) updates(0)
  = call my::print(%17)
  free %7, %8, %w
  return %17 -> %w, %6, %17
}
)";

TEST(ProgramTextTest, EveryFormRoundTrips) {
  const Program program = ParsedOf(kSyntax);
  EXPECT_EQ(program.ToString(), kSyntax);
  EXPECT_TRUE(Verify(program).ok()) << Verify(program);
}

TEST(ProgramTextTest, ParsesIntoTheFieldsItNames) {
  const Program p = ParsedOf(kSyntax);
  ASSERT_EQ(p.inputs.size(), 5u);
  EXPECT_TRUE(p.inputs[1].donated);
  EXPECT_FALSE(p.inputs[0].donated);
  EXPECT_EQ(p.sources, std::vector<std::string>{"train.py:3"});
  const Instruction& linear = p.instructions[0];
  EXPECT_EQ(linear.code, OpCode::kCall);
  EXPECT_EQ(linear.op, "aten::linear");
  EXPECT_EQ(linear.added_once, (std::vector<AddedOnce>{{2, {1, 2}}}));
  EXPECT_EQ(linear.source, 0);
  EXPECT_EQ(p.instructions[2].code, OpCode::kFree);
  const Instruction& to_all = p.instructions[5];
  EXPECT_EQ(to_all.code, OpCode::kAllToAll);
  EXPECT_EQ(to_all.dim, 0);
  EXPECT_EQ(to_all.to_dim, 1);
  EXPECT_EQ(p.instructions[8].fill, -INFINITY);
  const Instruction& split = p.instructions[12];
  EXPECT_EQ(split.operands.size(), 3u);
  EXPECT_EQ(split.operands[1], kNoValue);
  ASSERT_EQ(split.groups.size(), 1u);
  EXPECT_EQ(split.groups[0], (ir::OperandGroup{0, 2}));
  EXPECT_EQ(split.task, 7);
  EXPECT_EQ(split.results.size(), 2u);
  ASSERT_EQ(p.outputs.size(), 3u);
  EXPECT_EQ(p.outputs[0].becomes, 1);
  EXPECT_EQ(p.outputs[1].becomes, -1);
}

TEST(ProgramTextTest, CommentsAndBlanksDoNotCount) {
  const Program p = ParsedOf(R"(
    # a comment
    mesh @m [x=2]   // another
    program {

      %x: f32[4] @m { x }
      %0: f32[4] @m {} = all_gather( %x ) { x } dim( 0 )
      return %0
    })");
  EXPECT_EQ(p.ToString(), R"(mesh @m [x=2]
program {
  %x: f32[4] @m {x}
  %0: f32[4] @m {} = all_gather(%x) {x} dim(0)
  return %0
}
)");
}

std::string ParseError(absl::string_view statement) {
  const auto program = Program::Parse(
      absl::StrCat("mesh @m [x=2]\nprogram {\n%x: f32[4] @m {x}\n", statement, "\nreturn\n}\n"));
  EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument) << statement;
  return std::string(program.status().message());
}

TEST(ProgramTextTest, ErrorsNameTheLineAndTheText) {
  EXPECT_EQ(ParseError("%0: f32[4] @m {} = gather(%x)"),
            "line 4: expected 'call' or a move: slice, all_gather, all_to_all, permute, exchange, "
            "all_reduce, reduce_scatter, term at 'gather(%x)' in '%0: f32[4] @m {} = gather(%x)'");
  EXPECT_EQ(ParseError("%0: f32[4] @m {} = call f(%y)"),
            "line 4: value '%y' is used before it is defined");
  EXPECT_EQ(ParseError("%0: f32[4] @m {} = call f(%0)"),
            "line 4: value '%0' is used before it is defined");
  EXPECT_EQ(ParseError("%x: f32[4] @m {}"), "line 4: value '%x' is already defined on line 3");
  EXPECT_EQ(ParseError("%0: f32[4] @q {} = call f(%x)"), "line 4: there is no mesh '@q'");
  EXPECT_EQ(ParseError("%0: f32[4] @m {y} = call f(%x)"), "line 4: grid [x=2] has no axis 'y'");
  EXPECT_THAT(ParseError("%0: f32[4] @m {} = slice(%x) dim(-1)"),
              HasSubstr("a dimension at '-1)'"));
  EXPECT_THAT(ParseError("%0: f32[4] @m {x} window(0: 1..) = exchange(%x)"),
              HasSubstr("an expression"));
  EXPECT_THAT(ParseError("%0: f32[4] @m {x} = exchange(%x) fill(\"a\")"), HasSubstr("a number"));
  EXPECT_THAT(ParseError("%0: f32[4] @m {}, %1: f32[] @m"), HasSubstr("'=' after several results"));
  EXPECT_THAT(ParseError("free"), HasSubstr("a value like '%x'"));
  EXPECT_THAT(ParseError("nonsense"), HasSubstr("'free', 'scalar' or 'return'"));
  EXPECT_EQ(Program::Parse("mesh @m [x=2]").status().message(),
            "line 1: expected 'program {', but the text ends");
  EXPECT_EQ(Program::Parse("program {\nreturn\n}\nmore").status().message(),
            "line 4: expected nothing after the '}' of the program at 'more' in 'more'");
  EXPECT_EQ(Program::Parse("program {\n= call f()\nreturn\n}").status().message(),
            "line 2: expected a mesh before the first instruction, not this at the end of "
            "'= call f()'");
}

TEST(ProgramTextTest, DamagedTextIsParsedOrRefused) {
  std::mt19937 rng(41);
  const std::string text = kSyntax;
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (size_t n = 1 + rng() % 2; n > 0; --n) {
      const size_t at = rng() % damaged.size();
      switch (rng() % 3) {
        case 0:
          damaged.erase(at, 1 + rng() % 4);
          break;
        case 1:
          damaged[at] = text[rng() % text.size()];
          break;
        default:
          damaged.insert(at, 1, text[rng() % text.size()]);
          break;
      }
    }
    const auto program = Program::Parse(damaged);
    if (!program.ok()) continue;
    ++parsed;
    // Whatever parses prints, verifies or is refused, and prints the same again.
    if (!Verify(*program).ok()) continue;
    const std::string printed = program->ToString();
    EXPECT_EQ(ParsedOf(printed).ToString(), printed);
  }
  EXPECT_GT(parsed, 100);
}

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
