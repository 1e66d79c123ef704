// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/scanner.h"

#include <gtest/gtest.h>

#include <random>

namespace spmd {
namespace {

TEST(ScannerTest, TakesTokensFromLeftToRight) {
  Scanner in("  mesh @m [a=-3]");
  EXPECT_FALSE(in.ConsumeWord("mes"));
  EXPECT_TRUE(in.ConsumeWord("mesh"));
  EXPECT_EQ(in.Peek(), '@');
  EXPECT_TRUE(in.Consume("@"));
  EXPECT_EQ(*in.Identifier("a name"), "m");
  EXPECT_TRUE(in.Expect("[").ok());
  EXPECT_EQ(*in.Identifier("a name"), "a");
  EXPECT_TRUE(in.Looking("="));
  EXPECT_TRUE(in.Consume("="));
  EXPECT_EQ(*in.Integer("a size"), -3);
  EXPECT_FALSE(in.AtEnd());
  EXPECT_TRUE(in.Consume("]"));
  EXPECT_TRUE(in.ExpectEnd().ok());
}

TEST(ScannerTest, SeekGoesBack) {
  Scanner in("a b");
  const size_t begin = in.position();
  EXPECT_EQ(*in.Identifier("a name"), "a");
  in.Seek(begin);
  EXPECT_EQ(in.rest(), "a b");
}

TEST(ScannerTest, ErrorsNameWhatWasExpectedAndWhere) {
  Scanner in("dim(x)");
  EXPECT_TRUE(in.Consume("dim("));
  EXPECT_EQ(in.Integer("a dimension").status().message(),
            "expected a dimension at 'x)' in 'dim(x)'");
  EXPECT_EQ(in.rest(), "x)");
  EXPECT_TRUE(in.Consume("x)"));
  EXPECT_EQ(in.Expect("}").message(), "expected '}' at the end of 'dim(x)'");
}

TEST(ScannerTest, ErrorsShowOneShortLine) {
  std::string text(200, 'a');
  text += "\nb";
  Scanner in(text);
  const std::string message(in.Expect("}").message());
  EXPECT_LT(message.size(), 200u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(ScannerTest, IntegersThatDoNotFitAreRefused) {
  Scanner in("123456789012345678901234567890");
  EXPECT_FALSE(in.Integer("a size").ok());
  EXPECT_EQ(in.position(), 0u);
}

TEST(ScannerTest, Identifiers) {
  EXPECT_TRUE(IsIdentifier("_a1"));
  EXPECT_FALSE(IsIdentifier(""));
  EXPECT_FALSE(IsIdentifier("1a"));
  EXPECT_FALSE(IsIdentifier("a b"));
}

TEST(ScannerTest, AnyBytesRoundTripThroughQuotes) {
  std::mt19937 rng(3);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t n = rng() % 20; n > 0; --n) text.push_back(static_cast<char>(rng() % 256));
    const std::string quoted = Quote(text);
    for (char c : quoted) EXPECT_TRUE(c >= ' ' && c <= '~') << quoted;
    Scanner in(quoted);
    const auto back = in.Quoted("a string");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, text);
    EXPECT_TRUE(in.AtEnd());
  }
}

TEST(ScannerTest, BadQuotesAreRefused) {
  for (const char* text : {"\"abc", "\"a\\q\"", "\"\\x1\"", "\"\\", "abc"}) {
    Scanner in(text);
    EXPECT_FALSE(in.Quoted("a string").ok()) << text;
  }
}

}  // namespace
}  // namespace spmd
