// SPDX-License-Identifier: Apache-2.0
// Every pass is linear in the nodes of the graph, up to logarithms: eight times as many layers take
// some eight times as long. What is compared is the CPU time of the thread, which other work on the
// machine does not lengthen by much, and the best of several tries.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/partition/compile.h"

namespace spmd::partition {
namespace {

constexpr int kTimesMore = 8;
constexpr int kTries = 3;
// A quadratic pass takes 64 times as long.
constexpr double kMostTimesLonger = 3 * kTimesMore;
constexpr double kTooShortMs = 2;  // for the larger graph, to say anything

// Fully sharded layers, forward, backward, updates.
std::string GraphOfLayers(int layers) {
  std::string text = "mesh @m [x=4]\ngraph {\n  %h0: f32[64,64] @m {x},{}\n";
  for (int i = 0; i < layers; ++i) absl::StrAppend(&text, "  %w", i, ": f32[64,64] @m {x},{}\n");
  for (int i = 0; i < layers; ++i) {
    absl::StrAppend(&text, "  %a", i, ": f32[64,64] = aten::linear(%h", i, ", %w", i, ", _)\n");
    absl::StrAppend(&text, "  %h", i + 1, ": f32[64,64] = aten::relu(%a", i, ")\n");
  }
  absl::StrAppend(&text, "  %g", layers, ": f32[64,64] = aten::mul.Scalar(%h", layers,
                  ", other=2.0) task(1)\n");
  std::string results;
  for (int i = layers; i-- > 0;) {
    absl::StrAppend(&text, "  %d", i, ": f32[64,64] = spmd::linear_dweight(%g", i + 1, ", %h", i,
                    ") task(1)\n");
    absl::StrAppend(&text, "  %g", i, ": f32[64,64] = spmd::linear_dinput(%g", i + 1, ", %w", i,
                    ") task(1)\n");
    absl::StrAppend(&text, "  %n", i, ": f32[64,64] = aten::add.Tensor(%w", i, ", %d", i,
                    ", alpha=1)\n");
    absl::StrAppend(&results, results.empty() ? "" : ", ", "%n", i, " -> %w", i);
  }
  return absl::StrCat(text, "  return ", results, "\n}\n");
}

// Halos, and reads across the boundaries of shards.
std::string Windows(int layers) {
  std::string text =
      "mesh @m [x=4]\ngraph {\n  %h0: f32[1,2,64,4] @m {},{},{x},{}\n"
      "  %w: f32[2,2,3,1] @m {},{},{},{}\n";
  for (int i = 0; i < layers; ++i) {
    absl::StrAppend(&text, "  %c", i, ": f32[1,2,64,4] = aten::convolution(%h", i,
                    ", %w, _, stride=[1,1], padding=[1,0], dilation=[1,1], transposed=false, "
                    "output_padding=[0,0], groups=1)\n");
    absl::StrAppend(&text, "  %h", i + 1, ": f32[1,2,64,4] = aten::relu(%c", i, ")\n");
  }
  return absl::StrCat(text, "  return %h", layers, "\n}\n");
}

// Milliseconds by pass; a pass that runs several times counts as one.
std::map<std::string, double> Times(const std::string& text) {
  const auto graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::map<std::string, double> best;
  for (int i = 0; i < kTries && graph.ok(); ++i) {
    const auto compiled = Compile(*graph);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    if (!compiled.ok()) break;
    std::map<std::string, double> times;
    for (const Compiled::PassTime& time : compiled->times) times[time.pass] += time.ms;
    for (const auto& [pass, ms] : times) {
      const auto at = best.try_emplace(pass, ms).first;
      at->second = std::min(at->second, ms);
    }
  }
  return best;
}

void ExpectLinear(std::string (*graph_of)(int), int layers) {
  const std::map<std::string, double> few = Times(graph_of(layers));
  const std::map<std::string, double> many = Times(graph_of(kTimesMore * layers));
  EXPECT_GT(many.size(), 7u);
  for (const auto& [pass, ms] : many) {
    const auto at = few.find(pass);
    ASSERT_NE(at, few.end()) << pass;
    if (ms < kTooShortMs) continue;
    EXPECT_LT(ms, kMostTimesLonger * at->second)
        << pass << ": " << at->second << " ms for " << layers << " layers, " << ms << " ms for "
        << kTimesMore * layers;
  }
}

TEST(PassTimesTest, LayersAreLinear) { ExpectLinear(GraphOfLayers, 40); }
TEST(PassTimesTest, ChainsOfWindowsAreLinear) { ExpectLinear(Windows, 80); }

}  // namespace
}  // namespace spmd::partition
