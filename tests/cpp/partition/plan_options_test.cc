// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// The options of the node in `line`, whose operand %x is sharded as {a},{b}.
struct OptionCase {
  explicit OptionCase(const std::string& line)
      : p("mesh @m [a=2, b=2]\ngraph {\n %x: f32[8,8] @m {a},{b}\n %w: f32[8,8] @m {},{}\n " +
          line + "\n return %0\n}") {}

  // By group of axes, the factors that it may shard; -1 stands for nothing.
  std::vector<std::vector<int>> FactorsByGroup() const {
    std::vector<std::vector<int>> all;
    for (const std::vector<Option>& options : node.by_group) {
      all.emplace_back();
      for (const Option& o : options) {
        all.back().push_back(o.kind == Option::kFactor ? o.index : -1);
      }
    }
    return all;
  }

  Planned p;
  PartialPlan plan{p.graph, p.factors};
  PlanOptions options{plan};
  NodeOptions node = options.Of(0, 0);
};

TEST(PlanOptions, AxesShardTheDimensionWhereTheyAreOrNothing) {
  const OptionCase exp("%0: f32[8,8] = aten::exp(%x)");
  EXPECT_THAT(exp.FactorsByGroup(),
              ElementsAre(UnorderedElementsAre(0, -1), UnorderedElementsAre(1, -1)));
}

// Without them, each of their devices would do the same work.
TEST(PlanOptions, AxesOfAnOperandOfAProductMustShardIt) {
  const OptionCase product("%0: f32[8,8] = aten::mm(%x, %w)");
  EXPECT_THAT(product.FactorsByGroup(), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(PlanOptions, AChoiceIsAnOptionForEachGroup) {
  const OptionCase product("%0: f32[8,8] = aten::mm(%x, %w)");
  const std::vector<Option> both = {product.node.by_group[0][0], product.node.by_group[1][0]};
  const Choice choice = product.options.MakeChoice(0, 0, both, product.node.wishes);
  ASSERT_EQ(choice.cut.size(), 3u);
  EXPECT_EQ(choice.cut[0].axes, product.p.grid().SubAxesOf("a"));
  EXPECT_EQ(choice.cut[1].axes, product.p.grid().SubAxesOf("b"));
  EXPECT_TRUE(choice.cut[2].axes.empty());
  const std::vector<Option> rows = {product.node.by_group[0][0], Option()};
  EXPECT_TRUE(product.options.MakeChoice(0, 0, rows, product.node.wishes).cut[1].axes.empty());
}

}  // namespace
}  // namespace spmd::partition
