// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/block_ops.h"

#include <gtest/gtest.h>

#include <string>

#include "csrc/rules/builder.h"
#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

ir::Graph GraphOf(const std::string& node) {
  return *ir::Graph::Parse("graph {\n %x: f32[8,192]\n %y: f32[8,64]\n " + node +
                           "\n return %0\n}");
}

std::optional<BlockOp> BlockOpIn(const std::string& node) {
  const ir::Graph graph = GraphOf(node);
  return BlockOpOf(graph, graph.node(0));
}

TEST(BlockOps, ASliceTakesASlicedGradientPlacesAndACatJoins) {
  const auto take =
      BlockOpIn("%0: f32[8,64] = aten::slice.Tensor(%x, dim=1, start=64, end=128, step=1)");
  ASSERT_TRUE(take.has_value());
  EXPECT_EQ(take->use, rules::BlockUse::kTake);
  EXPECT_EQ(take->dim, 1);
  EXPECT_EQ(take->start, 64);
  EXPECT_EQ(take->end, 128);
  const auto from_end =
      BlockOpIn("%0: f32[8,64] = aten::slice.Tensor(%x, dim=-1, start=-64, end=none, step=1)");
  EXPECT_EQ(from_end->dim, 1);
  EXPECT_EQ(from_end->start, 128);
  EXPECT_EQ(from_end->end, 192);
  const auto place = BlockOpIn(
      "%0: f32[8,192] = aten::slice_backward(%y, input_sizes=[8,192], dim=1, start=64, end=128, "
      "step=1)");
  EXPECT_EQ(place->use, rules::BlockUse::kPlace);
  EXPECT_EQ(place->start, 64);
  const auto put =
      BlockOpIn("%0: f32[8,192] = aten::slice_scatter(%x, %y, dim=1, start=0, end=64, step=1)");
  EXPECT_EQ(put->use, rules::BlockUse::kPut);
  EXPECT_EQ(BlockOpIn("%0: f32[8,256] = aten::cat([%x, %y], dim=1)")->use, rules::BlockUse::kJoin);
}

TEST(BlockOps, OtherOpsAndStepsAreNone) {
  EXPECT_FALSE(BlockOpIn("%0: f32[8,64] = aten::relu(%y)").has_value());
  EXPECT_FALSE(BlockOpIn("%0: f32[8,96] = aten::slice.Tensor(%x, dim=1, start=0, end=192, step=2)")
                   .has_value());
}

TEST(BlockOps, TheSecondOfThreeBlocksIsASliceOfTheBlocks) {
  const ir::Graph graph =
      GraphOf("%0: f32[8,64] = aten::slice.Tensor(%x, dim=1, start=64, end=128, step=1)");
  const BlockOp op = *BlockOpOf(graph, graph.node(0));
  ir::Graph out;
  const ir::ValueId blocks = out.AddInput(*TensorType::Parse("f32[8,3,64]"));
  rules::Builder builder(&out, 0, -1);
  const ir::ValueId block = CallOnBlocks(builder, graph.node(0), op, 64, {blocks});
  EXPECT_EQ(out.type(block).ToString(), "f32[8,1,64]");
  EXPECT_EQ(out.node(0).attributes.ToString(), "dim=1, start=1, end=2, step=1");
}

}  // namespace
}  // namespace spmd::partition
