// SPDX-License-Identifier: Apache-2.0
// Recipes made from strides, on tensors of the CPU.
#include "csrc/trace/value/view_recipe.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {
namespace {

// Dense row-major values 0, 1, 2, …, as a Buffer's value is.
at::Tensor Base(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
}

at::Tensor Replayed(const RecipePtr& recipe, at::Tensor value) {
  for (const Recipe* step : Chain(recipe)) value = ApplyOnHost(*step, value);
  return value;
}

struct ViewCase {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> make;
};

class StridedRecipeTest : public testing::TestWithParam<ViewCase> {};

TEST_P(StridedRecipeTest, TheRecipeMakesTheViewFromTheBase) {
  const at::Tensor base = Base({4, 6, 2});
  const at::Tensor view = GetParam().make(base);
  const RecipePtr recipe = StridedRecipe(ContiguousForm(at::kFloat, {4, 6, 2}), view);
  ASSERT_NE(recipe, nullptr);
  const at::Tensor made = Replayed(recipe, base);
  EXPECT_EQ(made.sizes(), view.sizes());
  EXPECT_TRUE(made.equal(view));
}

INSTANTIATE_TEST_SUITE_P(
    Views, StridedRecipeTest,
    testing::Values(
        ViewCase{"Permuted", [](const at::Tensor& x) { return x.permute({2, 0, 1}); }},
        ViewCase{"Reshaped", [](const at::Tensor& x) { return x.view({24, 2}); }},
        ViewCase{"PermutedAndSplit",
                 [](const at::Tensor& x) { return x.permute({1, 0, 2}).unflatten(0, {2, 3}); }},
        ViewCase{"Sliced", [](const at::Tensor& x) { return x.slice(1, 1, 6, 2); }},
        ViewCase{"SlicedAndPermuted", [](const at::Tensor& x) { return x.slice(0, 1, 3).mT(); }},
        ViewCase{"Selected", [](const at::Tensor& x) { return x.select(1, 4); }},
        ViewCase{"Diagonal", [](const at::Tensor& x) { return x.diagonal(1, 0, 1); }},
        ViewCase{"Expanded",
                 [](const at::Tensor& x) { return x.select(0, 2).unsqueeze(0).expand({3, 6, 2}); }},
        ViewCase{"Overlapping", [](const at::Tensor& x) { return x.view(-1).unfold(0, 5, 2); }},
        ViewCase{"Empty", [](const at::Tensor& x) { return x.slice(1, 2, 2); }}),
    [](const testing::TestParamInfo<ViewCase>& info) { return info.param.name; });

TEST(StridedRecipeTest, APermutedDenseBaseIsReadInTheOrderOfItsValue) {
  // A value of sizes {4, 6} whose storage is column-major: the base form has the strides.
  const at::Tensor stored = Base({6, 4}).t();
  const BaseForm form = FormOf(stored);
  EXPECT_TRUE(IsBase(form, stored));
  EXPECT_FALSE(IsBase(form, stored.t()));
  const at::Tensor view = stored.slice(0, 1, 4);
  EXPECT_TRUE(Replayed(StridedRecipe(form, view), stored.contiguous()).equal(view));
}

TEST(StridedRecipeTest, PermutationsAndReshapesNeedNoGather) {
  const at::Tensor view = Base({4, 6}).t().unflatten(0, {2, 3});
  const RecipePtr recipe = StridedRecipe(ContiguousForm(at::kFloat, {4, 6}), view);
  for (const Recipe* step : Chain(recipe)) EXPECT_TRUE(IsBijection(step->op));
}

TEST(RecipeTest, DenseTensorsMayBeBases) {
  const at::Tensor x = Base({4, 6});
  EXPECT_TRUE(IsDense(x));
  EXPECT_TRUE(IsDense(x.t()));
  EXPECT_FALSE(IsDense(x.slice(1, 0, 3)));
  EXPECT_FALSE(IsDense(x.slice(0, 1, 4)));  // an offset
  EXPECT_FALSE(IsDense(x.select(0, 0).expand({4, 6})));
}

RecipePtr NewRecipe() { return std::make_shared<const Recipe>(); }

TEST(RecipeTableTest, AViewIsFoundByItsMetadata) {
  const at::Tensor x = Base({8, 4});
  RecipeTable table;
  EXPECT_EQ(table.Find(x.slice(0, 2, 4)), nullptr);
  const RecipePtr first = NewRecipe(), second = NewRecipe();
  table.Slot(x.slice(0, 2, 4)) = first;
  table.Slot(x.slice(0, 4, 6)) = second;
  EXPECT_EQ(*table.Find(x.slice(0, 2, 4)), first);
  EXPECT_EQ(*table.Find(x.slice(0, 4, 6)), second);
  EXPECT_EQ(table.Find(x.slice(0, 2, 5)), nullptr);
  EXPECT_EQ(table.Find(x.slice(0, 2, 4).t()), nullptr);
  table.clear();
  EXPECT_EQ(table.Find(x.slice(0, 2, 4)), nullptr);
}

TEST(RecipeTableTest, ANotedViewIsFoundByItsSerial) {
  const at::Tensor view = Base({8, 4}).t();
  TensorMeta meta = TensorMeta::Of(view);
  meta.serial = 7;
  const RecipePtr recipe = NewRecipe();
  RecipeTable table;
  EXPECT_EQ(table.FindNoted(view, 7), nullptr);
  table.Note(view, std::make_shared<const TensorMeta>(meta), recipe);
  EXPECT_EQ(*table.FindNoted(view, 7), recipe);
  EXPECT_EQ(*table.Find(view, 0), recipe);
}

TEST(RecipeTableTest, OfThousandsOfViewsTheOlderOnesAreForgotten) {
  const at::Tensor x = at::zeros({1 << 15});
  RecipeTable table;
  for (int64_t i = 0; i + 1 < x.size(0); ++i) table.Slot(x.slice(0, i, i + 1)) = NewRecipe();
  EXPECT_LT(table.size(), 1 << 14);
  EXPECT_NE(table.Find(x.slice(0, x.size(0) - 2, x.size(0) - 1)), nullptr);
  EXPECT_EQ(table.Find(x.slice(0, 0, 1)), nullptr);
}

}  // namespace
}  // namespace spmd::trace
