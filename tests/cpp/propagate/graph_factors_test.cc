// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/graph_factors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spmd::propagate {
namespace {

TEST(GraphFactors, CallsThatAreAlikeShareThem) {
  const ir::Graph graph = *ir::Graph::Parse(R"(graph {
    %x: f32[4,6]
    %w: f32[6,6]
    %0: f32[4,6] = aten::mm(%x, %w)
    %1: f32[4,6] = aten::mm(%0, %w)
    %2: f32[4,6] = aten::relu(%1)
    %3: f32[4,6] = mylib::unknown(%2)
    %4: f32[4] = aten::sum.dim_IntList(%3, dim=[1], keepdim=false, dtype=none)
    %5: f32[6] = aten::sum.dim_IntList(%3, dim=[0], keepdim=false, dtype=none)
    return %4, %5
  })");
  const auto factors = ComputeFactors(graph);
  ASSERT_TRUE(factors.ok()) << factors.status();
  ASSERT_EQ(factors->size(), 6u);
  EXPECT_EQ((*factors)[0]->ToString(), "a b, b c -> a c  {a=4, b=6, c=6}");
  EXPECT_EQ((*factors)[0].factors, (*factors)[1].factors);
  EXPECT_EQ((*factors)[3].rule, nullptr);
  EXPECT_TRUE((*factors)[3]->factors.empty());
  EXPECT_NE((*factors)[4].factors, (*factors)[5].factors);  // another attribute
}

TEST(GraphFactors, ARuleThatDoesNotFitNamesTheCall) {
  const ir::Graph graph = *ir::Graph::Parse(R"(graph {
    %x: f32[4,6]
    %0: f32[4,4] = aten::mm(%x, %x)
    return %0
  })");
  const absl::Status status = ComputeFactors(graph).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("aten::mm(f32[4,6], f32[4,6])"));
}

}  // namespace
}  // namespace spmd::propagate
