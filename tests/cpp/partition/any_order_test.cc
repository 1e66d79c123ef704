// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/any_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

// By factor of the node in `line`: whether its indices may be in any order.
std::vector<bool> InAnyOrder(const std::string& body) {
  const Planned p("graph {\n" + body + "\n return %0\n}");
  const rules::OpCall call = rules::OpCall::Of(p.graph, p.graph.node(0));
  std::vector<bool> any;
  for (size_t f = 0; f < p.factors[0]->factors.size(); ++f) {
    any.push_back(IsInAnyOrder(p.factors[0], call, static_cast<int>(f)));
  }
  return any;
}

TEST(InAnyOrder, RowsColumnsAndSumsOfAProduct) {
  EXPECT_THAT(InAnyOrder("%x: f32[4,6]\n%w: f32[6,8]\n%0: f32[4,8] = aten::mm(%x, %w)"),
              testing::ElementsAre(true, true, true));
}

TEST(InAnyOrder, NotTheRowsOfATriangleWhoseDiagonalMoves) {
  EXPECT_THAT(InAnyOrder("%x: f32[4,6]\n%0: f32[4,6] = aten::tril(%x, diagonal=0)"),
              testing::ElementsAre(false, false));
}

TEST(InAnyOrder, NotPartsOfADimensionNorWindowsNorWhatIsWhole) {
  EXPECT_THAT(InAnyOrder("%x: f32[4,6]\n%0: f32[24] = aten::view(%x, size=[24])"),
              testing::ElementsAre(false, false));
  EXPECT_THAT(InAnyOrder("%x: f32[8,2]\n%0: f32[4,2] = aten::slice.Tensor(%x, dim=0, start=2, "
                         "end=6, step=1)"),
              testing::ElementsAre(false, true));
  EXPECT_THAT(InAnyOrder("%x: f32[4,6]\n%0: f32[4,6] = aten::_softmax(%x, dim=1, "
                         "half_to_float=false)"),
              testing::ElementsAre(true, false));
}

}  // namespace
}  // namespace spmd::partition
