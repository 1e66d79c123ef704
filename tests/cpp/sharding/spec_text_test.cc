// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/spec_text.h"

#include <gtest/gtest.h>

#include <string>

namespace spmd {
namespace {

TEST(SpecText, ReadsWhatIsWritten) {
  for (const char* text : {"()", "('a',)", "(None, 'data')", "(('x', 'y'), UNCONSTRAINED, None)",
                           "('model:0', 'model:(2)4', 0)", "(None, blocks(3, 'model'))",
                           "(blocks(2, ('x', 'y')), blocks(4, 1))"}) {
    Scanner in(text);
    const auto spec = ParseSpecText(in);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(in.AtEnd());
    EXPECT_EQ(SpecToString(*spec), text);
  }
}

TEST(SpecText, RefusesWhatIsNone) {
  for (const char* text : {"", "'a'", "('a'", "(a)", "('a' 'b')", "(('a',)", "(blocks(3),)",
                           "(blocks(0, 'a'),)", "(blocks(3, 'a'", "(blocks 'a',)"}) {
    Scanner in(text);
    EXPECT_FALSE(ParseSpecText(in).ok()) << text;
  }
}

}  // namespace
}  // namespace spmd
