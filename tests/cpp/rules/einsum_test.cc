// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/einsum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "csrc/rules/row.h"
#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The factors that `text` gives the call in `line`; the message of an error.
std::string Fit(const char* text, const char* line) {
  const OneOp op(line);
  const absl::StatusOr<OpFactors> factors = FactorsOf(Einsum("a::b", text), op.call());
  return factors.ok() ? factors->ToString() : std::string(factors.status().message());
}

TEST(Einsum, NamesAreNumberedInOrderOfAppearance) {
  EXPECT_EQ(Fit("m k, k n -> m n", "f32[2,4] = a::b(f32[2,3], f32[3,4])"),
            "a b, b c -> a c  {a=2, b=3, c=4}");
  EXPECT_EQ(ParseEinsum("m k, k n -> m n")->names, (std::vector<std::string>{"m", "k", "n"}));
}

TEST(Einsum, FactorsOfSizeOneAreLeftOut) {
  EXPECT_EQ(Fit("m k, k n -> m n", "f32[1,4] = a::b(f32[1,3], f32[3,4])"),
            "1 a, a b -> 1 b  {a=3, b=4}");
}

TEST(Einsum, EllipsisStandsForLeadingDimensionsAlignedAtTheRight) {
  EXPECT_EQ(Fit("... k, n k, n? -> ... n", "f32[5,2,4] = a::b(f32[5,2,3], f32[4,3], _)"),
            "a b c, d c, () -> a b d  {a=5, b=2, c=3, d=4}");
  EXPECT_EQ(Fit("... k, ... k -> ...", "f32[5,2] = a::b(f32[5,2,3], f32[2,3])"),
            "a b c, b c -> a b  {a=5, b=2, c=3}");
  EXPECT_EQ(Fit("... k, n k -> ... n", "f32[4] = a::b(f32[3], f32[4,3])"),
            "a, b a -> b  {a=3, b=4}");
}

TEST(Einsum, ASizeOneThatBroadcastsHasNoFactor) {
  EXPECT_EQ(Fit("..., ... -> ...", "f32[2,3] = a::b(f32[2,1], f32[1,3])"),
            "a 1, 1 b -> a b  {a=2, b=3}");
}

TEST(Einsum, CompoundDimensionsAreSolved) {
  EXPECT_EQ(Fit("(a b) c, b -> a (b c)", "f32[3,20] = a::b(f32[12,5], f32[4])"),
            "(a b) c, b -> a (b c)  {a=3, b=4, c=5}");
  EXPECT_THAT(Fit("(a b), b -> a", "f32[3] = a::b(f32[13], f32[4])"), HasSubstr("does not split"));
}

TEST(Einsum, BracketsMakeAFactorWholeEverywhere) {
  EXPECT_EQ(Fit("... [h], h? -> ... h", "f32[2,3] = a::b(f32[2,3], f32[3])"),
            "a [b], [b] -> a [b]  {a=2, b=3}");
}

TEST(Einsum, AddedOperandsMayHaveLowerRank) {
  const Rule rule = Einsum("a::b", "+m n, m k, k n -> m n");
  EXPECT_THAT(rule.added, ElementsAre(0));
  EXPECT_EQ(Fit("+m n, m k, k n -> m n", "f32[2,4] = a::b(f32[4], f32[2,3], f32[3,4])"),
            "a, b c, c a -> b a  {a=4, b=2, c=3}");
  EXPECT_EQ(Fit("+m n, m k, k n -> m n", "f32[2,4] = a::b(f32[2,1], f32[2,3], f32[3,4])"),
            "a 1, a c, c b -> a b  {a=2, b=4, c=3}");
}

TEST(Einsum, ScalarsAndOnes) {
  EXPECT_EQ(Fit("k, k -> ()", "f32[] = a::b(f32[3], f32[3])"), "a, a -> ()  {a=3}");
  EXPECT_EQ(Fit("m k -> m 1", "f32[2,1] = a::b(f32[2,3])"), "a b -> a 1  {a=2, b=3}");
}

TEST(Einsum, CallsThatDoNotFitAreErrors) {
  EXPECT_THAT(Fit("m k, k n -> m n", "f32[2,4] = a::b(f32[2,3], f32[5,4])"),
              HasSubstr("sizes 3 and 5 of one factor differ"));
  EXPECT_THAT(Fit("m k -> m", "f32[2] = a::b(f32[2,3,4])"), HasSubstr("should have rank 2"));
  EXPECT_THAT(Fit("m, n -> m n", "f32[2,3] = a::b(f32[2], _)"), HasSubstr("operand 1 is absent"));
  EXPECT_THAT(Fit("m -> m", "f32[2] = a::b(f32[2], f32[2])"), HasSubstr("has 1 operands"));
  EXPECT_THAT(Fit("m -> m", "f32[1] = a::b(f32[2])"), HasSubstr("result 0 has size 1"));
}

TEST(Einsum, TypesFollowTheText) {
  EXPECT_EQ(OneOp("bf16[5,2,4] = aten::linear(bf16[5,2,3], bf16[4,3], _)").TypeText(),
            "bf16[5,2,4]");
  EXPECT_EQ(OneOp("f32[7,2,3,4] = aten::matmul(f32[7,1,3,5], f32[2,5,4])").TypeText(),
            "f32[7,2,3,4]");
}

}  // namespace
}  // namespace spmd::rules
