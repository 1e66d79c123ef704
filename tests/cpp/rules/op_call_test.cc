// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/op_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using testing::ThrowsMessage;

TEST(OpCallTest, HasTheTypesOfANode) {
  const OneOp op("f32[2,4], i64[] = a::b(f32[2,3], _, [f32[3], f32[4]], dim=-1)");
  const OpCall call = op.call();
  EXPECT_EQ(call.ToString(), "a::b(f32[2,3], _, f32[3], f32[4], dim=-1)");
  EXPECT_TRUE(call.has(0));
  EXPECT_FALSE(call.has(1));
  EXPECT_FALSE(call.has(4));
  ASSERT_EQ(call.groups.size(), 1u);
  EXPECT_EQ(call.groups[0], (ir::OperandGroup{2, 2}));
  ASSERT_EQ(call.results.size(), 2u);
  EXPECT_EQ(call.results[1].ToString(), "i64[]");
  EXPECT_THAT([&] { call.operand(1); },
              ThrowsMessage<std::invalid_argument>("operand 1 is absent"));
}

TEST(OpCallTest, DimsCountFromTheEndToo) {
  const OneOp op("f32[2] = a::b(f32[2], dim=-1)");
  EXPECT_EQ(op.call().Dim("dim", 3), 2);
  EXPECT_EQ(op.call().Wrapped(2, "dim", 3), 2);
  EXPECT_EQ(op.call().Wrapped(-3, "dim", 3), 0);
  EXPECT_EQ(op.call().Wrapped(-1, "dim", 0), 0);  // of a tensor of rank 0
  EXPECT_THAT([&] { op.call().Wrapped(3, "axis", 3); },
              ThrowsMessage<std::invalid_argument>("axis=3 is out of range for rank 3"));
}

}  // namespace
}  // namespace spmd::rules
