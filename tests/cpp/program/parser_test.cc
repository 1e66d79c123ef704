// SPDX-License-Identifier: Apache-2.0
// The text form of programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/program/program.h"
#include "tests/cpp/program/syntax.h"

namespace spmd::program {
namespace {

using ::testing::HasSubstr;

TEST(ProgramParser, EveryFormRoundTrips) {
  const Program program = ParsedOf(kSyntax);
  EXPECT_EQ(program.ToString(), kSyntax);
  EXPECT_TRUE(Verify(program).ok()) << Verify(program);
}

TEST(ProgramParser, ParsesIntoTheFieldsItNames) {
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

TEST(ProgramParser, CommentsAndBlanksDoNotCount) {
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

TEST(ProgramParser, ErrorsNameTheLineAndTheText) {
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

TEST(ProgramParser, DamagedTextIsParsedOrRefused) {
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

}  // namespace
}  // namespace spmd::program
