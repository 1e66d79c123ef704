// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/rewrite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/ir/verifier.h"

namespace spmd::partition {
namespace {

using Replaced = absl::StatusOr<std::optional<std::vector<ir::ValueId>>>;

constexpr char kThreeOps[] = R"(mesh @m [a=2]
graph {
  scalar $0: float
  %x: f32[4] @m {a}
  %0: f32[4] = aten::relu(%x) at "train.py:3"
  %1: f32[4] @m {a} = aten::mul.Scalar(%0, other=$0)
  %2: f32[4] = aten::exp(%0)
  return %1 -> %x
}
)";

TEST(Rewrite, WithoutReplacementsItIsACopy) {
  const ir::Graph graph = *ir::Graph::Parse(kThreeOps);
  const auto copy =
      Rewrite(graph, [](auto&, const auto&, ir::NodeId, auto) -> Replaced { return std::nullopt; });
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->ToString(), kThreeOps);
}

TEST(Rewrite, AReplacementGetsTheAnnotationAndItsUsers) {
  const ir::Graph graph = *ir::Graph::Parse(kThreeOps);
  const auto rewritten = Rewrite(
      graph,
      [](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
         absl::Span<const ir::ValueId> operands) -> Replaced {
        if (old.node(id).op != "aten::mul.Scalar") return std::nullopt;
        return std::vector<ir::ValueId>{builder.Neg(builder.Neg(operands[0]))};
      },
      LiveNodes(graph));
  ASSERT_TRUE(rewritten.ok()) << rewritten.status();
  EXPECT_TRUE(ir::Verify(*rewritten).ok());
  EXPECT_EQ(rewritten->ToString(), R"(mesh @m [a=2]
graph {
  scalar $0: float
  %x: f32[4] @m {a}
  %0: f32[4] = aten::relu(%x) at "train.py:3"
  %1: f32[4] = aten::neg(%0)
  %2: f32[4] @m {a} = aten::neg(%1)
  return %2 -> %x
}
)");
}

TEST(Rewrite, OnlyWhatLeavesTheGraphIsLive) {
  EXPECT_THAT(LiveNodes(*ir::Graph::Parse(kThreeOps)), testing::ElementsAre(true, true, false));
}

TEST(Rewrite, AResultThatIsLeftOutCannotBeUsed) {
  const ir::Graph graph = *ir::Graph::Parse(kThreeOps);
  const auto rewritten = Rewrite(graph, [](auto&, const auto&, ir::NodeId id, auto) -> Replaced {
    if (id != 0) return std::nullopt;
    return std::vector<ir::ValueId>{ir::kNoValue};
  });
  EXPECT_EQ(rewritten.status().message(),
            "%0 is used by aten::mul.Scalar, but aten::relu does not compute it: its output mask "
            "leaves it out");
}

}  // namespace
}  // namespace spmd::partition
