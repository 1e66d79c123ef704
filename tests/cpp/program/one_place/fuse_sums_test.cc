// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/fuse_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/cpp/program/one_place/products_and_sums.h"

namespace spmd::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Changes = std::vector<std::pair<std::string, std::string>>;

Program ParsedOf(const Changes& changes) {
  auto program = Program::Parse(absl::StrReplaceAll(kProductsAndSums, changes));
  EXPECT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  return *std::move(program);
}

// The names of the results that are computed with a product added.
std::vector<std::string> Fused(const Changes& changes) {
  const std::optional<Program> fused = FuseSums(ParsedOf(changes));
  if (!fused) return {};
  EXPECT_TRUE(Verify(*fused).ok()) << Verify(*fused) << fused->ToString();
  std::vector<std::string> names;
  for (const Instruction& call : fused->instructions) {
    if (call.op == "spmd::add_linear_dinput") names.push_back(fused->values[call.results[0]].name);
  }
  return names;
}

// The results of the calls whose sum %4 is, once the program is fused.
std::vector<std::string> ProductsOfSum(const Changes& changes) {
  const Program program = ParsedOf(changes);
  const Program fused = FuseSums(program).value_or(program);
  std::vector<std::string> names;
  for (size_t id = 0; id < fused.values.size(); ++id) {
    if (fused.values[id].name != "4") continue;
    for (int i : ProductsOf(fused, DefUse(fused), static_cast<ValueId>(id))) {
      names.push_back(fused.values[fused.instructions[i].results[0]].name);
    }
  }
  return names;
}

TEST(FuseSums, ProductsThatAreAddedToPartialSums) { EXPECT_THAT(Fused({}), ElementsAre("2", "4")); }

TEST(FuseSums, NotWhatIsNeededElsewhere) {
  EXPECT_THAT(Fused({{"return %5", "return %5, %1"}}), ElementsAre("4"));
  EXPECT_THAT(Fused({{"(%2, %3,", "(%2, %1,"}}), IsEmpty());
  EXPECT_THAT(Fused({{"(%0, %1,", "(%1, %1,"}}), ElementsAre("4"));
}

TEST(FuseSums, NotWhatIsRoundedOrMultipliedInBetween) {
  EXPECT_THAT(Fused({{"f32", "bf16"}}), IsEmpty());
  EXPECT_THAT(Fused({{"%1, alpha=1", "%1, alpha=2"}}), ElementsAre("4"));
}

TEST(FuseSums, NotWhereADeviceHasNothingToContract) {
  // One column over four devices.
  EXPECT_THAT(Fused({{"f32[6,7]", "f32[6,1]"}, {"f32[7,10]", "f32[1,10]"}}), ElementsAre("4"));
}

TEST(FuseSums, ValuesThatAreNotUnreducedKeepTheBitsOfTwoOps) {
  const auto program = Program::Parse(R"(
mesh @m [data=2]
program {
  %g: f32[6,8] @m {data},{}
  %w: f32[8,10] @m {},{}
  %x: f32[6,10] @m {data},{}
  %0: f32[6,10] @m {data},{} = call spmd::linear_dinput(%g, %w)
  %1: f32[6,10] @m {data},{} = call aten::add.Tensor(%x, %0, alpha=1)
  return %1
}
)");
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_FALSE(FuseSums(*program).has_value());
}

TEST(ProductsOf, AreThoseWhoseSumAPartialSumIs) {
  EXPECT_THAT(ProductsOfSum({}), ElementsAre("0", "2", "4"));
  // %1 is not only added, or is something else.
  EXPECT_THAT(ProductsOfSum({{"return %5", "return %5, %1"}}), IsEmpty());
  EXPECT_THAT(ProductsOfSum({{"(%0, %1, alpha=1)", "(%0, %1, alpha=2)"}}), IsEmpty());
  // The partial sums are used themselves.
  EXPECT_THAT(ProductsOfSum({{"return %5", "return %5, %4"}}), IsEmpty());
  EXPECT_THAT(ProductsOfSum({{"return %5", "return %5, %2"}}), IsEmpty());
  EXPECT_THAT(ProductsOfSum({{"f32", "f16"}}), IsEmpty());
}

TEST(ProductIn, IsTheProductAlone) {
  const std::optional<Program> fused = FuseSums(ParsedOf({}));
  ASSERT_TRUE(fused.has_value());
  for (const Instruction& call : fused->instructions) {
    if (call.op != "spmd::add_linear_dinput") continue;
    const Instruction product = ProductIn(call);
    EXPECT_EQ(product.op, "spmd::linear_dinput");
    EXPECT_THAT(product.operands, ElementsAre(call.operands[1], call.operands[2]));
    EXPECT_EQ(product.results, call.results);
  }
}

}  // namespace
}  // namespace spmd::program
