// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "csrc/ir/verifier.h"
#include "csrc/reference/interpreter.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class BuilderTest : public testing::Test {
 protected:
  ir::ValueId Input(const char* type) { return graph_.AddInput(*TensorType::Parse(type)); }
  // The elements of `v` if the inputs are `data`.
  std::vector<double> Elements(ir::ValueId v, const std::vector<std::vector<double>>& data = {}) {
    graph_.AddOutput({v});
    EXPECT_TRUE(ir::Verify(graph_).ok()) << ir::Verify(graph_);
    std::vector<reference::Literal> inputs;
    for (size_t i = 0; i < data.size(); ++i) {
      inputs.push_back({graph_.type(graph_.inputs()[i]), data[i]});
    }
    const auto outputs = reference::Interpret(graph_, inputs);
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    return outputs.ok() ? outputs->back().data : std::vector<double>();
  }

  ir::Graph graph_;
  Builder b_{&graph_, /*task=*/3, /*source=*/-1};
};

TEST_F(BuilderTest, TypesComeFromTheRules) {
  const ir::ValueId x = Input("bf16[2,3]");
  EXPECT_EQ(b_.type(b_.Sum(x, {1}, /*keepdim=*/true)).ToString(), "bf16[2,1]");
  EXPECT_EQ(b_.type(b_.Cast(x, DType::kF32)).ToString(), "f32[2,3]");
  EXPECT_EQ(b_.type(b_.Permute(x, {1, 0})).ToString(), "bf16[3,2]");
  EXPECT_EQ(b_.type(b_.Iota(3, 1, 2)).ToString(), "i64[1,3]");
  EXPECT_EQ(b_.Cast(x, DType::kBF16), x);
  EXPECT_EQ(graph_.node(0).task, 3);
}

TEST_F(BuilderTest, ACallThatDoesNotFitThrows) {
  const ir::ValueId x = Input("f32[2]"), y = Input("f32[3]");
  EXPECT_THAT([&] { b_.Add(x, y); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("sizes 2 and 3 do not broadcast")));
}

TEST_F(BuilderTest, NumbersHaveTheTypeOfTheTensor) {
  const ir::ValueId i = Input("i64[2]");
  EXPECT_EQ(b_.type(b_.AddScalar(i, 2.0)).ToString(), "i64[2]");
  EXPECT_EQ(b_.type(b_.MulScalar(i, 0.5)).ToString(), "f32[2]");
  EXPECT_THAT(Elements(b_.AddScalar(i, 2.0), {{5, -1}}), ElementsAre(7, 1));
}

TEST_F(BuilderTest, AddsTheMultipleOfANumber) {
  const ir::ValueId x = Input("f64[2]");
  EXPECT_THAT(Elements(b_.AddScaled(x, Attr(0.5), 3), {{1, 2}}), ElementsAre(2.5, 3.5));
}

TEST_F(BuilderTest, OneMinusANumber) {
  EXPECT_THAT(Elements(b_.OneMinus(Attr(0.25))), ElementsAre(0.75));
}

TEST_F(BuilderTest, SlicesAndSquares) {
  const ir::ValueId x = Input("f32[4]");
  EXPECT_THAT(Elements(b_.Square(b_.Slice(x, 0, 1, 3)), {{1, 2, 3, 4}}), ElementsAre(4, 9));
}

}  // namespace
}  // namespace spmd::rules
