// SPDX-License-Identifier: Apache-2.0
// What einsum text means, and what is no einsum text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/rules/einsum.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string TextError(const char* text) {
  const absl::StatusOr<EinsumPattern> pattern = ParseEinsum(text);
  return pattern.ok() ? "" : std::string(pattern.status().message());
}

TEST(EinsumText, NamesAreNumberedInOrderOfAppearance) {
  const EinsumPattern pattern = *ParseEinsum("rows (head of), [keys] head -> rows keys, ()");
  EXPECT_THAT(pattern.names, ElementsAre("rows", "head", "of", "keys"));
  EXPECT_THAT(pattern.whole, ElementsAre(false, false, false, true));
  ASSERT_EQ(pattern.operands.size(), 2u);
  EXPECT_EQ(pattern.operands[0].dims.size(), 2u);
  EXPECT_THAT(pattern.operands[1].dims[0].names, ElementsAre(3));
  ASSERT_EQ(pattern.results.size(), 2u);
  EXPECT_THAT(pattern.results[1].dims, IsEmpty());
}

TEST(EinsumText, ErrorsSayWhatIsWrong) {
  EXPECT_THAT(TextError("m k"), HasSubstr("exactly one '->'"));
  EXPECT_THAT(TextError("m 2 -> m"), HasSubstr("'2' is not a factor"));
  EXPECT_THAT(TextError("m m -> m"), HasSubstr("'m' occurs twice in one tensor"));
  EXPECT_THAT(TextError("... ... -> ..."), HasSubstr("'...' occurs twice"));
  EXPECT_THAT(TextError("(a b -> a"), HasSubstr("'(' without ')'"));
  EXPECT_THAT(TextError("a -> +a"), HasSubstr("for operands only"));
}

TEST(EinsumText, ResultsThatAreTheSameInEveryShard) {
  absl::StatusOr<EinsumPattern> pattern = ParseEinsum("[m] [n], [m] k -> [n] k, = [m] [n]");
  ASSERT_TRUE(pattern.ok());
  EXPECT_FALSE(pattern->results[0].same);
  EXPECT_TRUE(pattern->results[1].same);
  EXPECT_THAT(ParseEinsum("= m k -> m").status().message(), HasSubstr("'=' is for results only"));
}

TEST(EinsumText, MarksOfATensor) {
  const EinsumPattern pattern = *ParseEinsum("+m n, m k, k n? -> m n");
  EXPECT_TRUE(pattern.operands[0].added);
  EXPECT_FALSE(pattern.operands[1].added);
  EXPECT_TRUE(pattern.operands[2].optional);
  EXPECT_FALSE(pattern.operands[1].optional);
}

}  // namespace
}  // namespace spmd::rules
