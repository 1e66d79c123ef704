// SPDX-License-Identifier: Apache-2.0
// Errors of calls that do not fit their op.
#include "csrc/rules/graph_verifier.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace spmd::rules {
namespace {

absl::Status Verified(const std::string& node) {
  const absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(absl::StrCat(R"(graph {
  scalar $0: float
  %x: f32[4,6]
  %i: i64[3]
  )",
                                                                        node, R"(
  return %x
}
)"));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return rules::Verify(*graph);
}

TEST(GraphVerifier, AcceptsWhatTheSchemaLeavesOpen) {
  for (const char* node : {
           "%0: f32[4,6] = aten::add.Scalar(%x, other=$0)",  // alpha has a default
           "%0: f32[4,5] = aten::linear(%x, %w)",            // no bias
           "%0: f32[4] = aten::sum.dim_IntList(%x, dim=[-1])",
           "%0: f32[8,6] = aten::cat([%x, %x], dim=0)",
           "%0: f32[3,6] = aten::index.Tensor(%x, [%i, _])",
           "%0: f32[1] = my::op(%x, whatever=7)",  // no rule, no signature
       }) {
    const std::string text =
        absl::StrContains(node, "%w") ? absl::StrCat("%w: f32[5,6]\n  ", node) : std::string(node);
    EXPECT_TRUE(Verified(text).ok()) << Verified(text);
  }
}

TEST(GraphVerifier, NamesTheCallAndWhatDoesNotFit) {
  const std::pair<const char*, const char*> cases[] = {
      {"%0: f32[4,6] = aten::add.Tensor(%x)", "operand 1 ('other') is absent"},
      {"%0: f32[4,6] = aten::relu(%x, %x)", "it takes 1 operands, not 2"},
      {"%0: f32[8,6] = aten::cat(%x, %x, dim=0)", "operand 0 ('tensors') is no list"},
      {"%0: f32[4,6] = aten::relu([%x])", "'self' is one tensor, not a list"},
      {"%0: f32[4,6] = aten::add.Scalar(%x)", "argument 'other' (Scalar) is missing"},
      {"%0: f32[4,6] = aten::relu(%x, speed=2)", "it has no argument 'speed'"},
      {"%0: f32[4,6] = aten::permute(%x, dims=1)", "argument dims=1 should be int[]"},
      {"%0: f32[6,4] = aten::permute(%x, dims=[1,2])", "dim=2 is out of range for rank 2"},
      {"%0: f32[4,6], %1: f32[1] = aten::relu(%x)", "it has 1 results, not 2"},
      {"%0: f32[4,7] = aten::relu(%x)", "gives f32[4,6] as result 0, not f32[4,7]"},
      {"%0: f32[4,4] = aten::mm(%x, %x)", "sizes 6 and 4 of one factor differ"},
      {"%0: f32[4,6] = aten::softplus(%x, beta=\"a\")", "argument beta=\"a\" should be Scalar"},
      {"%0: f32[2,2] = aten::view(%x, size=[2,2])", "aten::view"},
      {"%0: f32[4,6] = aten::view(%x, size=[16,-9223372036854775808])", "a number is too large"},
      {"%0: f32[4,6] = spmd::reorder(%x, dim=0, index=[0,1,2,9223372036854775807])",
       "index 9223372036854775807 is one of no tensor"},
  };
  for (const auto& [node, expected] : cases) {
    const absl::Status status = Verified(node);
    EXPECT_FALSE(status.ok()) << node;
    EXPECT_TRUE(absl::StartsWith(status.message(), "verifier: node 0 (%0): ")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), expected)) << status;
  }
}

}  // namespace
}  // namespace spmd::rules
