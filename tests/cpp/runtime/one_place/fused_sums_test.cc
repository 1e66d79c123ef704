// SPDX-License-Identifier: Apache-2.0
// Products that are added to partial sums (csrc/program/one_place/fuse_sums.h) have the right
// values.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/runtime/executor.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

using program::Program;

// Two products with a sharded contraction, and the sum of both and a first one.
constexpr const char* kText = R"(
mesh @m [data=2, model=4]
program {
  %g: f32[6,8] @m {data},{model}
  %w: f32[8,10] @m {model},{}
  %h: f32[6,7] @m {data},{model}
  %v: f32[7,10] @m {model},{}
  %0: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %1: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%h, %v)
  %2: f32[6,10] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %4: f32[6,10] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%2, %3, alpha=1)
  %5: f32[6,10] @m {data},{} = all_reduce(%4) {model}
  return %5
}
)";

std::string With(std::vector<std::pair<std::string, std::string>> changes) {
  return absl::StrReplaceAll(kText, changes);
}

std::vector<at::Tensor> RunText(const std::string& text, const std::vector<at::Tensor>& inputs,
                                bool deduplicate) {
  const auto backend = *MakeBackend("cpu", std::nullopt);
  const auto loaded = LoadedProgram::Load(*Program::Parse(text), backend, {deduplicate});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout layout = (*loaded)->program().LayoutOf((*loaded)->program().inputs[i].value);
    arguments.push_back({Upload(inputs[i], layout, *backend), false});
  }
  const auto results = (*loaded)->Run(absl::MakeSpan(arguments), {});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<at::Tensor> values;
  for (const TiledTensorPtr& result : *results) values.push_back(Assemble(*result));
  return values;
}

TEST(FusedSums, AreTheSumsOfTheTwoOps) {
  for (const bool deduplicate : {true, false}) {
    // Seven columns over four devices: the last has one; one column: three devices have none.
    for (const int64_t n : {7, 1}) {
      const at::Tensor g = at::randn({6, 8}), w = at::randn({8, 10}), h = at::randn({6, n}),
                       v = at::randn({n, 10});
      const std::string text = With({{"f32[6,7]", absl::StrCat("f32[6,", n, "]")},
                                     {"f32[7,10]", absl::StrCat("f32[", n, ",10]")},
                                     // What was added to is needed once more.
                                     {"return %5",
                                      "  %6: f32[6,10] @m {data},{} = all_reduce(%2) "
                                      "{model}\n  return %5, %6"}});
      const auto results = RunText(text, {g, w, h, v}, deduplicate);
      ASSERT_EQ(results.size(), 2u);
      const at::Tensor first = g.matmul(w) + h.matmul(v);
      EXPECT_TRUE(at::allclose(results[0], first + g.matmul(w), 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(results[1], first, 1e-5, 1e-5));
    }
  }
}

TEST(FusedSums, OfMoreDimensions) {
  const at::Tensor g = at::randn({3, 2, 8}), w = at::randn({8, 10}), h = at::randn({3, 2, 7}),
                   v = at::randn({7, 10});
  const std::string text = With({{"f32[6,8] @m {data},", "f32[3,2,8] @m {},{data},"},
                                 {"f32[6,7] @m {data},", "f32[3,2,7] @m {},{data},"},
                                 {"f32[6,10] @m {data},", "f32[3,2,10] @m {},{data},"}});
  const auto results = RunText(text, {g, w, h, v}, true);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(at::allclose(results[0], g.matmul(w) * 2 + h.matmul(v), 1e-5, 1e-5));
}

}  // namespace
}  // namespace spmd::runtime
