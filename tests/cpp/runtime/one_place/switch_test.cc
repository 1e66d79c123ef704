// SPDX-License-Identifier: Apache-2.0
// LoadedProgram::Options::one_place turns off all that this folder does.
#include <gtest/gtest.h>

#include "csrc/runtime/executor.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

constexpr const char* kText = R"(
mesh @m [data=2, model=4]
program {
  %g: f32[64,32] @m {data},{model}
  %w: f32[32,48] @m {model},{}
  %h: f32[64,32] @m {data},{model}
  %i: i64[5] @m {}
  %0: f32[64,48] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %1: f32[64,48] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%h, %w)
  %2: f32[64,48] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[64,48] @m {data},{} = all_reduce(%2) {model}
  %4: f32[64,48] @m {},{} = all_gather(%3) {data} dim(0)
  %5: f32[5,48] @m {},{} = call aten::index_select(%4, %i, dim=0)
  return %3, %5
}
)";

std::vector<TiledTensorPtr> RunWith(LoadedProgram::Options options,
                                    const std::vector<at::Tensor>& inputs) {
  const auto backend = *MakeBackend("cpu", std::nullopt);
  const auto loaded = LoadedProgram::Load(*program::Program::Parse(kText), backend, options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout layout = (*loaded)->program().LayoutOf((*loaded)->program().inputs[i].value);
    arguments.push_back({Upload(inputs[i], layout, *backend), false});
  }
  const auto results = (*loaded)->Run(absl::MakeSpan(arguments), {});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *results : std::vector<TiledTensorPtr>();
}

TEST(OnePlace, OffMeansTileByTileWithTheSameNumbers) {
  const at::Tensor g = at::randn({64, 32}), w = at::randn({32, 48}), h = at::randn({64, 32});
  const at::Tensor index = at::tensor({3, 63, 0, 3, 17}, at::kLong);
  const at::Tensor sum = (g + h).matmul(w);
  for (const bool one_place : {true, false}) {
    const auto results = RunWith({.coalesce = true, .one_place = one_place}, {g, w, h, index});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0]->whole, one_place);
    EXPECT_EQ(results[0]->tiles.size(), one_place ? 1u : 2u);
    EXPECT_TRUE(at::allclose(*Download(*results[0]), sum, 1e-4, 1e-4));
    EXPECT_TRUE(at::allclose(*Download(*results[1]), sum.index_select(0, index), 1e-4, 1e-4));
  }
}

}  // namespace
}  // namespace spmd::runtime
