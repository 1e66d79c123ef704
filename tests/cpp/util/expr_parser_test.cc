// SPDX-License-Identifier: Apache-2.0
// The text form of expressions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "csrc/util/expr.h"

namespace spmd {
namespace {

using ::testing::HasSubstr;

const Expr kBegin = Expr::Start(Operand(0), 1);

std::string ParseError(absl::string_view text) {
  const auto expr = Expr::Parse(text);
  EXPECT_EQ(expr.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(expr.status().message());
}

TEST(ExprParser, ParsesWhatAPersonWrites) {
  EXPECT_EQ(*Expr::Parse(" max( start(o0, 1) * 2 - 1 , 0 ) "), Max(kBegin * 2 - 1, 0));
  EXPECT_EQ(*Expr::Parse("2*(3+4)"), Expr(14));
  EXPECT_EQ(*Expr::Parse("10-4-3"), Expr(3));
}

TEST(ExprParser, ParserLeavesWhatIsNotItsOwn) {
  Scanner in("start(o0,1)-1..7 of 9");
  const auto expr = Expr::Parse(in);
  ASSERT_TRUE(expr.ok());
  EXPECT_EQ(*expr, kBegin - 1);
  EXPECT_EQ(in.rest(), "..7 of 9");
}

TEST(ExprParser, ErrorsShowTheOffendingText) {
  EXPECT_EQ(ParseError("start(q0,1)"),
            "expected o<k> or r<k>, an operand or a result at 'q0,1)' in 'start(q0,1)'");
  EXPECT_EQ(ParseError("size(o0,1)+"), "expected an expression at the end of 'size(o0,1)+'");
  EXPECT_EQ(ParseError("mean(1,2)"),
            "expected start, size, extent, coord, floordiv, ceildiv, min or max at 'mean(1,2)' in "
            "'mean(1,2)'");
  EXPECT_EQ(ParseError("floordiv(size(o0,0),0)"),
            "expected a positive divisor at '0)' in 'floordiv(size(o0,0),0)'");
  EXPECT_EQ(ParseError("1 2"), "expected the end at '2' in '1 2'");
  EXPECT_THAT(ParseError("99999999999999999999"), HasSubstr("expected an integer"));
  EXPECT_THAT(ParseError("start(o-1,0)"), HasSubstr("the number of an operand or result"));
  EXPECT_THAT(ParseError(std::string(100000, '(')), HasSubstr("a shallower expression"));
}

TEST(ExprParser, AnyTextIsParsedOrRefused) {
  std::mt19937 rng(2);
  const std::string alphabet = "start(o0,1)size-+*maxfloordivcoord 92r";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = rng() % 12; n > 0; --n) text.push_back(alphabet[rng() % alphabet.size()]);
    const auto parsed = Expr::Parse(text);
    if (parsed.ok()) {
      EXPECT_EQ(*Expr::Parse(parsed->ToString()), *parsed) << text;
    }
  }
}

}  // namespace
}  // namespace spmd
