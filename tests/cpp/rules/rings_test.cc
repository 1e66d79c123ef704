// SPDX-License-Identifier: Apache-2.0
// An op written in steps around a ring computes what the op computes.
#include "csrc/rules/tables/rings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "csrc/ir/verifier.h"
#include "csrc/reference/interpreter.h"
#include "csrc/rules/builder.h"
#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using reference::Literal;

// The call as its ring form on `devices` devices writes it; no outputs if it has none.
ir::Graph InRing(const OneOp& op, int64_t devices) {
  ir::Graph graph;
  std::vector<ir::ValueId> operands;
  for (const ir::ValueId v : op.node().operands) {
    operands.push_back(v == ir::kNoValue ? v : graph.AddInput(op.graph().type(v)));
  }
  Builder builder(&graph, 0, -1);
  const auto values = op.rule().ring->write(builder, op.graph(), op.node(), operands, devices);
  EXPECT_TRUE(values.ok()) << values.status();
  for (const ir::ValueId v : *values) graph.AddOutput({v});
  EXPECT_TRUE(ir::Verify(graph).ok()) << ir::Verify(graph);
  return graph;
}

std::vector<Literal> Inputs(const ir::Graph& graph) {
  std::vector<Literal> inputs;
  for (const ir::ValueId v : graph.inputs()) {
    inputs.push_back(reference::SampleLiteral(graph.type(v), static_cast<int>(inputs.size())));
  }
  return inputs;
}

void ExpectSame(const std::string& line, int64_t devices) {
  const OneOp op(line);
  const ir::Graph ring = InRing(op, devices);
  ASSERT_EQ(ring.outputs().size(), op.graph().outputs().size()) << line;
  const auto want = reference::Interpret(op.graph(), Inputs(op.graph()));
  const auto got = reference::Interpret(ring, Inputs(ring));
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  for (size_t k = 0; k < want->size(); ++k) {
    ASSERT_EQ((*want)[k].type, (*got)[k].type);
    for (size_t i = 0; i < (*want)[k].data.size(); ++i) {
      EXPECT_NEAR((*want)[k].data[i], (*got)[k].data[i], 1e-9) << line << " result " << k;
    }
  }
}

TEST(RingForm, OfAttentionIsAttention) {
  for (const char* causal : {"false", "true"}) {
    for (const int64_t devices : {2, 4}) {
      ExpectSame(std::string("f64[2,4,8,2], f64[2,4,8] = spmd::attention(f64[2,4,8,2], "
                             "f64[2,2,8,2], f64[2,2,8,2], _, is_causal=") +
                     causal + ", scale=0.5)",
                 devices);
    }
  }
}

TEST(RingForm, LengthsThatTheRingDoesNotDivideHaveNone) {
  const OneOp op(
      "f64[1,1,6,2], f64[1,1,6] = spmd::attention(f64[1,1,6,2], f64[1,1,6,2], f64[1,1,6,2], _, "
      "is_causal=false, scale=none)");
  EXPECT_TRUE(InRing(op, 4).outputs().empty());
}

}  // namespace
}  // namespace spmd::rules
