// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace spmd::ir {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<int, std::string>> Numbered(absl::string_view text) {
  std::vector<std::pair<int, std::string>> lines;
  for (const Line& line : SplitLines(text)) lines.emplace_back(line.number, line.text);
  return lines;
}

TEST(Lines, BlankOnesAreLeftOutButCounted) {
  EXPECT_THAT(Numbered(""), IsEmpty());
  EXPECT_THAT(Numbered("\n \t\n"), IsEmpty());
  EXPECT_THAT(Numbered("a\n\n  b c  \n"), ElementsAre(Pair(1, "a"), Pair(3, "b c")));
}

TEST(Lines, CommentsEndThemUnlessQuoted) {
  EXPECT_THAT(Numbered("a # one\n# two\nb // three"), ElementsAre(Pair(1, "a"), Pair(3, "b")));
  EXPECT_THAT(Numbered("s=\"# no // comment\" # yes"),
              ElementsAre(Pair(1, "s=\"# no // comment\"")));
  EXPECT_THAT(Numbered("s=\"a\\\" # b\" # yes"), ElementsAre(Pair(1, "s=\"a\\\" # b\"")));
  EXPECT_THAT(Numbered("a / b"), ElementsAre(Pair(1, "a / b")));
}

TEST(Lines, ErrorsNameTheLineAndKeepTheirCode) {
  EXPECT_TRUE(AtLine(3, absl::OkStatus()).ok());
  EXPECT_EQ(AtLine(3, absl::NotFoundError("no mesh")), absl::NotFoundError("line 3: no mesh"));
}

}  // namespace
}  // namespace spmd::ir
