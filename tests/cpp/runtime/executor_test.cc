// SPDX-License-Identifier: Apache-2.0
// Programs on tiles, compared with plain ATen on the global values.
#include "csrc/runtime/executor.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/runtime/interrupt.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "tests/cpp/runtime/most_in_use.h"
#include "tests/cpp/runtime/move_to.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

using program::Program;
using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<Backend> Cpu() { return *MakeBackend("cpu", std::nullopt); }

std::shared_ptr<LoadedProgram> LoadText(const std::string& text, bool deduplicate = true) {
  absl::StatusOr<Program> program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status() << "\n" << text;
  if (!program.ok()) return nullptr;
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  auto loaded = LoadedProgram::Load(
      *std::move(program), Cpu(),
      {deduplicate, /*coalesce=*/false, LoadedProgram::Options::Turns::kAlways});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

// Uploads by the program's own layouts, runs, reads by Assemble.
std::vector<at::Tensor> RunLoaded(const std::string& text, const std::vector<at::Tensor>& inputs,
                                  const std::vector<c10::Scalar>& scalars = {},
                                  bool deduplicate = true) {
  const std::shared_ptr<LoadedProgram> loaded = LoadText(text, deduplicate);
  if (loaded == nullptr) return {};
  auto backend = Cpu();
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const program::Input& input = loaded->program().inputs[i];
    arguments.push_back(
        {Upload(inputs[i], loaded->program().LayoutOf(input.value), *backend), input.donated});
  }
  const auto results = loaded->Run(std::move(arguments), scalars);
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<at::Tensor> values;
  if (!results.ok()) return values;
  for (const TiledTensorPtr& result : *results) values.push_back(Assemble(*result));
  return values;
}

void ExpectAllClose(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(at::allclose(a, b, 1e-5, 1e-5)) << a.sub(b).abs().max();
}

TEST(Executor, LinearWithACutContraction) {
  for (bool deduplicate : {true, false}) {
    const at::Tensor x = at::randn({6, 10}), w = at::randn({4, 10}), b = at::randn({4});
    const auto results = RunLoaded(R"(
mesh @m [data=2, model=4]
program {
  %x: f32[6,10] @m {data},{model}
  %w: f32[4,10] @m {},{model}
  %b: f32[4] @m {}
  %0: f32[6,4] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model)
  %1: f32[6,4] @m {data},{} = all_reduce(%0) {model}
  free %0
  %2: f32[6,4] @m {},{} = all_gather(%1) {data} dim(0)
  return %1, %2
}
)",
                                   {x, w, b}, {}, deduplicate);
    ASSERT_EQ(results.size(), 2);
    ExpectAllClose(results[0], at::linear(x, w, b));
    ExpectAllClose(results[1], at::linear(x, w, b));
  }
}

// Terms beyond what f16 can hold, of sums, products and what is computed with them.
TEST(Executor, TermsOfHalfTypesAreComputedInFloat) {
  for (const auto& [type, name] : {std::pair(at::kHalf, "f16"), std::pair(at::kBFloat16, "bf16")}) {
    const at::Tensor sign = at::ones({8}).to(type);
    sign.narrow(0, 4, 4).fill_(-1);
    const at::Tensor x = at::full({2, 8}, 250, type).mul(sign);
    const at::Tensor w = at::full({8, 3}, 300, type);
    x.select(1, 7).fill_(-249);
    const auto results = RunLoaded(absl::StrReplaceAll(R"(
mesh @m [model=4]
program {
  %x: T[2,8] @m {},{model}
  %w: T[8,3] @m {model},{}
  %0: T[2,3] @m {},{} unreduced(sum){model} = call aten::mm(%x, %w)
  %1: T[2,3] @m {},{} unreduced(sum){model} = call aten::mul.Scalar(%0, other=4)
  %2: T[2,3] @m {},{} unreduced(sum){model} = call aten::add.Tensor(%1, %0, alpha=1)
  %3: T[2,3] @m {},{} = all_reduce(%2) {model}
  %4: T[3] @m {} unreduced(prod){model} = call aten::prod.dim_int(%w, dim=0, keepdim=false)
  %5: T[3] @m {} = all_reduce(%4) {model}
  return %3, %2, %5
}
)",
                                                       {{"T[", absl::StrCat(name, "[")}}),
                                   {x, w});
    ASSERT_EQ(results.size(), 3);
    EXPECT_TRUE(at::equal(results[0], at::full({2, 3}, 1500, type)));
    EXPECT_TRUE(at::equal(results[2], w.to(at::kFloat).prod(0).to(type)));
  }
}

// A program whose devices share a place, run coalesced.
std::vector<TiledTensorPtr> RunCoalesced(const std::string& text,
                                         const std::vector<TiledTensorPtr>& inputs) {
  auto loaded =
      LoadedProgram::Load(*Program::Parse(text), Cpu(), {/*deduplicate=*/true, /*coalesce=*/true});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    arguments.push_back({inputs[i], (*loaded)->program().inputs[i].donated});
  }
  auto results = (*loaded)->Run(std::move(arguments), {});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<TiledTensorPtr>();
}

TEST(Executor, CoalescedItIsOneCallOnOneTensor) {
  constexpr const char* kText = R"(
mesh @m [data=4]
program {
  %x: f32[6,10] @m {data},{}
  %g: f32[6,7] @m {data},{}
  %w: f32[7,10] @m {},{} donated
  %0: f32[6,7] @m {data},{} = call aten::linear(%x, %w, _)
  %1: f32[7,6] @m {},{data} = call aten::t(%g)
  %2: f32[7,10] @m {},{} unreduced(sum){data} = call aten::mm(%1, %x)
  return %0, %2
}
)";
  const at::Tensor x = at::randn({6, 10}), g = at::randn({6, 7}), w = at::randn({7, 10});
  auto backend = Cpu();
  const Program program = *Program::Parse(kText);
  for (bool whole : {true, false}) {
    std::vector<TiledTensorPtr> inputs;
    for (size_t i = 0; i < 3; ++i) {
      inputs.push_back(Upload(i == 0   ? x
                              : i == 1 ? g
                                       : w,
                              program.LayoutOf(program.inputs[i].value), *backend, whole));
    }
    const auto results = RunCoalesced(kText, inputs);
    ASSERT_EQ(results.size(), 2);
    // The layouts are the program's; there is one tensor each.
    EXPECT_EQ(results[0]->layout.num_tiles(), 4);
    EXPECT_EQ(results[1]->layout.sharding().unreduced.size(), 2);
    for (const TiledTensorPtr& result : results) {
      EXPECT_TRUE(result->whole);
      EXPECT_EQ(result->tiles.size(), 1);
    }
    // One product over all rows, bit for bit; read tile by tile it is the same.
    EXPECT_TRUE(at::equal(*Download(*results[0]), at::linear(x, w)));
    EXPECT_TRUE(at::equal(*Download(*results[1]), at::mm(g.t(), x)));
    for (const TiledTensorPtr& result : results) {
      EXPECT_TRUE(
          at::equal(Assemble(*MoveTo(*result, result->layout, *backend)), *Download(*result)));
    }
  }
}

TEST(Executor, WhatWasRunWholeMayGoOnTileByTile) {
  constexpr const char* kText = R"(
mesh @m [data=4]
program {
  %x: f32[6,10] @m {data},{}
  %0: f32[6,10] @m {data},{} = call aten::mul.Tensor(%x, %x)
  return %0
}
)";
  const at::Tensor x = at::randn({6, 10});
  const Program program = *Program::Parse(kText);
  const auto whole =
      RunCoalesced(kText, {Upload(x, program.LayoutOf(program.inputs[0].value), *Cpu())});
  ASSERT_EQ(whole.size(), 1);
  const auto tiles = LoadText(kText)->Run({{whole[0], false}}, {});
  ASSERT_TRUE(tiles.ok()) << tiles.status();
  EXPECT_FALSE((*tiles)[0]->whole);
  ExpectAllClose(Assemble(*(*tiles)[0]), x.pow(4));
}

TEST(Executor, AddedOnceWhereTheOperandIsRequired) {
  const at::Tensor x = at::randn({6, 9}), w = at::randn({9, 5}), b = at::randn({5});
  const auto results = RunLoaded(R"(
mesh @m [a=2, b=2]
program {
  %x: f32[6,9] @m {},{a,b}
  %w: f32[9,5] @m {a,b},{}
  %b: f32[5] @m {}
  %0: f32[6,5] @m {},{} unreduced(sum){a,b} = call aten::addmm(%b, %x, %w) added_once(0: a,b)
  return %0
}
)",
                                 {x, w, b});
  ASSERT_EQ(results.size(), 1);
  ExpectAllClose(results[0], at::addmm(b, x, w));
}

TEST(Executor, ExpressionsAreEvaluatedPerTile) {
  const at::Tensor table = at::randn({7, 3}), x = at::randn({5, 6});
  const at::Tensor indices = at::randint(0, 7, {4}, at::kLong);
  const auto results = RunLoaded(R"(
mesh @m [a=2, b=2]
program {
  %table: f32[7,3] @m {a,b},{}
  %indices: i64[4] @m {}
  %x: f32[5,6] @m {a},{b}
  %0: f32[4,3] @m {},{} unreduced(sum){a,b} = call spmd::embedding(%table, %indices, first_row=start(o0,0))
  %1: i64[9] @m {a} = call spmd::iota(size=size(r0,0), start=10, step=2, offset=start(r0,0), dtype=i64)
  %2: f32[5,6,1] @m {a},{b},{} = call aten::view(%x, size=[size(r0,0),size(r0,1),1])
  %3: i64[2] @m {a} = call spmd::iota(size=size(r0,0), start=0, step=1, offset=coord(0), dtype=i64)
  return %0, %1, %2, %3
}
)",
                                 {table, indices, x});
  ASSERT_EQ(results.size(), 4);
  ExpectAllClose(results[0], at::embedding(table, indices));
  EXPECT_TRUE(at::equal(results[1], at::arange(10, 28, 2, at::kLong)));
  ExpectAllClose(results[2], x.unsqueeze(2));
  EXPECT_TRUE(at::equal(results[3], at::arange(2, at::kLong)));
}

TEST(Executor, HalosByExchange) {
  // Rows with a neighbour on each side and zeros outside: a convolution over sharded rows.
  const at::Tensor x = at::randn({2, 3, 10, 6}), w = at::randn({4, 3, 3, 3});
  for (const char* devices : {"3", "4", "7"}) {
    const auto results = RunLoaded(absl::StrCat("\nmesh @m [r=", devices, R"(]
program {
  %x: f32[2,3,10,6] @m {},{},{r},{}
  %w: f32[4,3,3,3] @m {},{},{},{}
  %0: f32[2,3,10,6] @m {},{},{r},{} window(2: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 10) = exchange(%x) {r}
  %1: f32[2,4,10,6] @m {},{},{r},{} = call aten::convolution(%0, %w, _, stride=[1,1], padding=[0,1], dilation=[1,1], transposed=false, output_padding=[0,0], groups=1)
  return %1
}
)"),
                                   {x, w});
    ASSERT_EQ(results.size(), 1);
    ExpectAllClose(results[0], at::conv2d(x, w, std::nullopt, {1, 1}, {1, 1}));
  }
}

TEST(Executor, FillOfAnExchange) {
  // Windows of three rows that reach over the edges see −inf there.
  const at::Tensor x = at::randn({1, 8, 5});
  const auto results = RunLoaded(R"(
mesh @m [r=3]
program {
  %x: f32[1,8,5] @m {},{r},{}
  %0: f32[1,8,5] @m {},{r},{} window(1: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 8) = exchange(%x) {r} fill(-inf)
  %1: f32[1,8,5] @m {},{r},{} = call aten::max_pool2d(%0, kernel_size=[3,1], stride=[1,1], padding=[0,0], dilation=[1,1], ceil_mode=false)
  return %1
}
)",
                                 {x});
  ASSERT_EQ(results.size(), 1);
  ExpectAllClose(results[0], at::max_pool2d(x, {3, 1}, {1, 1}, {1, 0}));
}

TEST(Executor, SeveralResultsAndListsOfTensors) {
  const at::Tensor x = at::randn({6, 8}), w = at::randn({8}), b = at::randn({8}),
                   y = at::randn({6, 3});
  const auto results = RunLoaded(R"(
mesh @m [a=4]
program {
  %x: f32[6,8] @m {a},{}
  %w: f32[8] @m {}
  %b: f32[8] @m {}
  %y: f32[6,3] @m {a},{}
  %0: f32[6,8] @m {a},{}, %1: f32[6,1] @m {a},{}, %2: f32[6,1] @m {a},{} = call aten::native_layer_norm(%x, %w, %b, normalized_shape=[8], eps=1e-05)
  %3: f32[6,11] @m {a},{} = call aten::cat([%0, %y], dim=1)
  %4: f32[6,4] @m {a},{}, %5: f32[6,4] @m {a},{} = call aten::split.Tensor(%x, split_size=4, dim=1)
  %6: f32[6,8] @m {a},{} = call aten::clamp.Tensor(%x, _, %b)
  return %1, %3, %5, %6
}
)",
                                 {x, w, b, y});
  ASSERT_EQ(results.size(), 4);
  const auto [out, mean, rstd] = at::native_layer_norm(x, {8}, w, b, 1e-5);
  ExpectAllClose(results[0], mean);
  ExpectAllClose(results[1], at::cat({out, y}, 1));
  ExpectAllClose(results[2], x.narrow(1, 4, 4));
  ExpectAllClose(results[3], at::clamp(x, std::nullopt, b));
}

TEST(Executor, RunTimeScalars) {
  const std::string text = R"(
mesh @m [a=2]
program {
  scalar $0: float
  scalar $1: int
  %x: f32[5,4] @m {a},{}
  %y: f32[5,4] @m {a},{}
  %0: f32[5,4] @m {a},{} = call aten::add.Tensor(%x, %y, alpha=$0)
  %1: f32[5,2] @m {a},{} = call spmd::slice_start(%x, dim=1, start=$1, length=2)
  return %0, %1
}
)";
  const at::Tensor x = at::randn({5, 4}), y = at::randn({5, 4});
  for (int64_t start : {0, 2}) {
    const auto results = RunLoaded(text, {x, y}, {0.25 * start, start});
    ASSERT_EQ(results.size(), 2);
    ExpectAllClose(results[0], x.add(y, 0.25 * start));
    ExpectAllClose(results[1], x.narrow(1, start, 2));
  }
}

TEST(Executor, EmptyTilesAndEmptyReductions) {
  // 3 rows over 4 devices: the last one has none, and a sum over none is the identity.
  const at::Tensor x = at::randn({3, 5});
  const auto results = RunLoaded(R"(
mesh @m [a=4, b=2]
program {
  %x: f32[3,5] @m {a},{b}
  %0: f32[5] @m {b} unreduced(sum){a} = call aten::sum.dim_IntList(%x, dim=[0], keepdim=false)
  %1: f32[5] @m {b} = all_reduce(%0) {a}
  %2: f32[5] @m {b} unreduced(max){a} = call aten::amax(%x, dim=[0], keepdim=false)
  %3: f32[5] @m {b} = all_reduce(%2) {a}
  %4: f32[3,5] @m {a},{b} = call aten::relu(%x)
  return %1, %3, %4, %0, %2
}
)",
                                 {x});
  ASSERT_EQ(results.size(), 5);
  ExpectAllClose(results[0], x.sum(0));
  ExpectAllClose(results[1], x.amax(0));
  ExpectAllClose(results[2], x.relu());
  ExpectAllClose(results[3], x.sum(0));
  ExpectAllClose(results[4], x.amax(0));
}

TEST(Executor, ChainsOfMoves) {
  const at::Tensor x = at::randint(-9, 10, {6, 10}, at::kFloat);
  for (bool deduplicate : {true, false}) {
    const auto results = RunLoaded(R"(
mesh @m [a=2, b=3]
program {
  %x: f32[6,10] @m {a},{b}
  %0: f32[6,10] @m {a,b},{} = all_to_all(%x) {b} dim(1) to(0)
  %1: f32[6,10] @m {},{} = all_gather(%0) {a,b} dim(0)
  %2: f32[6,10] @m {},{b} = slice(%1) {b} dim(1)
  %3: f32[6,10] @m {},{b} unreduced(sum){a} = term(%2) {a}
  %4: f32[6,10] @m {a},{b} = reduce_scatter(%3) {a} dim(0)
  %5: f32[6,10] @m {},{} unreduced(sum){a} = all_gather(%3) {b} dim(1)
  %6: f32[6,10] @m {b,a},{} = permute(%0) {a,b}
  %7: f32[6,10] @m {b chunk=4},{a} = exchange(%6) {a,b}
  return %0, %1, %2, %3, %4, %5, %6, %7
}
)",
                                   {x}, {}, deduplicate);
    ASSERT_EQ(results.size(), 8);
    for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, x));
  }
}

TEST(Executor, MergedCollectives) {
  const at::Tensor x = at::randn({4, 4}), y = at::randn({6});
  const auto results = RunLoaded(R"(
mesh @m [a=2]
program {
  %x: f32[4,4] @m {a},{}
  %y: f32[6] @m {a}
  %0: f32[4] @m {} unreduced(sum){a} = call aten::sum.dim_IntList(%x, dim=[0], keepdim=false)
  %1: f32[] @m unreduced(sum){a} = call aten::sum(%y)
  %2: f32[4] @m {}, %3: f32[] @m = all_reduce(%0, %1) {a}
  return %2, %3
}
)",
                                 {x, y});
  ASSERT_EQ(results.size(), 2);
  ExpectAllClose(results[0], x.sum(0));
  ExpectAllClose(results[1], y.sum());
}

TEST(Executor, RandomNumbersDoNotDependOnTheCut) {
  const auto text = [](const std::string& sharding) {
    return absl::StrCat(
        R"(
mesh @m [a=2, b=3]
program {
  scalar $0: int
  scalar $1: int
  %0: f32[7,50] @m )",
        sharding,
        R"( = call spmd::random(size=[size(r0,0),size(r0,1)], offset=[start(r0,0),start(r0,1)], global_size=[7,50], seed=$0, counter=$1, distribution="normal", p0=0.0, p1=1.0, dtype=f32)
  return %0
}
)");
  };
  const at::Tensor expected = RunLoaded(text("{},{}"), {}, {5, 6}).at(0);
  for (const char* sharding : {"{a},{b}", "{a,b},{}", "{},{b,a}", "{b},{}"}) {
    EXPECT_TRUE(at::equal(RunLoaded(text(sharding), {}, {5, 6}).at(0), expected));
  }
  EXPECT_FALSE(at::equal(RunLoaded(text("{},{}"), {}, {5, 7}).at(0), expected));
}

TEST(Executor, TwoHundredAndFiftySixDevices) {
  const at::Tensor x = at::randn({320, 40}), w = at::randn({40, 33});
  const auto results = RunLoaded(R"(
mesh @m [a=16, b=4, c=4]
program {
  %x: f32[320,40] @m {a},{b}
  %w: f32[40,33] @m {b},{c}
  %0: f32[320,33] @m {a},{c} unreduced(sum){b} = call aten::mm(%x, %w)
  %1: f32[320,33] @m {a,b},{c} = reduce_scatter(%0) {b} dim(0)
  %2: f32[320,33] @m {},{} = exchange(%1) {a,b,c}
  return %1, %2
}
)",
                                 {x, w});
  ASSERT_EQ(results.size(), 2);
  ExpectAllClose(results[0], at::mm(x, w));
  ExpectAllClose(results[1], at::mm(x, w));
}

// --- ownership ---

constexpr const char* kUpdate = R"(
mesh @m [a=2]
program {
  scalar $0: float
  %p: f32[6,4] @m {a},{} donated
  %g: f32[6,4] @m {a},{}
  %0: f32[6,4] @m {a},{} = call aten::add.Tensor(%p, %g, alpha=$0) updates(0)
  free %p
  return %0 -> %p
}
)";

TEST(Executor, UpdatesDonatedTilesInPlace) {
  const auto loaded = LoadText(kUpdate);
  const auto backend = Cpu();
  const Layout layout = loaded->program().LayoutOf(0);
  const at::Tensor p = at::randn({6, 4}), g = at::randn({6, 4});
  const TiledTensorPtr gradient = Upload(g, layout, *backend);
  TiledTensorPtr parameter = Upload(p, layout, *backend);
  const void* memory = parameter->tiles[0].data_ptr();

  std::vector<LoadedProgram::Argument> arguments{{std::move(parameter), true}, {gradient, false}};
  auto results = loaded->Run(absl::MakeSpan(arguments), {-0.5});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0]->tiles[0].data_ptr(), memory);
  EXPECT_EQ(arguments[0].value, nullptr);
  EXPECT_NE(arguments[1].value, nullptr);
  ExpectAllClose(Assemble(*(*results)[0]), p.sub(g.mul(0.5)));
  ExpectAllClose(Assemble(*gradient), g);
}

TEST(Executor, NeverWritesWhatSomebodyElseHolds) {
  const auto loaded = LoadText(kUpdate);
  const auto backend = Cpu();
  const Layout layout = loaded->program().LayoutOf(0);
  const at::Tensor p = at::randn({6, 4}), g = at::randn({6, 4});
  const TiledTensorPtr parameter = Upload(p, layout, *backend),
                       gradient = Upload(g, layout, *backend);
  // Held as a value; not donated at all; aliased by a view.
  for (int how = 0; how < 3; ++how) {
    at::Tensor alias;
    std::vector<LoadedProgram::Argument> arguments{{parameter, how != 1}, {gradient, false}};
    if (how == 2) {
      arguments[0].value = Upload(p, layout, *backend);
      alias = arguments[0].value->tiles[0].t();
    }
    const auto results = loaded->Run(absl::MakeSpan(arguments), {1.0});
    ASSERT_TRUE(results.ok());
    ExpectAllClose(Assemble(*(*results)[0]), p.add(g));
    ExpectAllClose(Assemble(*parameter), p);
    if (alias.defined()) ExpectAllClose(alias.t(), p.narrow(0, 0, 3));
  }
}

constexpr const char* kAdam = R"(
mesh @m [a=2]
program {
  %p: f32[6,4] @m {a},{} donated
  %g: f32[6,4] @m {a},{}
  %m: f32[6,4] @m {a},{} donated
  %v: f32[6,4] @m {a},{} donated
  %t: f32[] @m
  %0: f32[6,4] @m {a},{}, %1: f32[6,4] @m {a},{}, %2: f32[6,4] @m {a},{} = call spmd::adam(%p, %g, %m, %v, %t, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-06, decoupled=true, maximize=false)
  free %p, %m, %v
  return %0 -> %p, %1 -> %m, %2 -> %v
}
)";

TEST(Executor, OverwritesAllOperandsThatItsResultsReplaceOrNone) {
  const auto loaded = LoadText(kAdam);
  const auto backend = Cpu();
  const Layout layout = loaded->program().LayoutOf(0);
  const at::Tensor p = at::randn({6, 4}), g = at::randn({6, 4}), m = at::randn({6, 4}),
                   v = at::rand({6, 4}), step = at::full({}, 3.0);
  const at::Tensor want[] = {p.clone(), m.clone(), v.clone()};
  at::_fused_adamw_({want[0]}, {g}, {want[1]}, {want[2]}, {}, {step}, 0.1, 0.9, 0.99, 0.1, 1e-6,
                    false, false);
  // Nobody else holds anything; the second average is given, but not away; a view of the first is
  // held.
  for (int how = 0; how < 3; ++how) {
    std::vector<LoadedProgram::Argument> arguments;
    std::vector<const void*> memory;
    for (const at::Tensor& t : {p, g, m, v}) {
      const bool donated = !t.is_same(g) && !(how == 1 && t.is_same(v));
      arguments.push_back({Upload(t, layout, *backend), donated});
      if (!t.is_same(g)) memory.push_back(arguments.back().value->tiles[0].data_ptr());
    }
    arguments.push_back({Upload(step, loaded->program().LayoutOf(4), *backend), false});
    const TiledTensorPtr kept = how == 1 ? arguments[3].value : nullptr;
    const at::Tensor alias = how == 2 ? arguments[2].value->tiles[0].t() : at::Tensor();
    const auto results = loaded->Run(absl::MakeSpan(arguments), {});
    ASSERT_TRUE(results.ok()) << results.status();
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ((*results)[k]->tiles[0].data_ptr() == memory[k], how == 0) << how << " " << k;
      ExpectAllClose(Assemble(*(*results)[k]), want[k]);
    }
    if (how == 1) ExpectAllClose(Assemble(*kept), v);
    if (how == 2) ExpectAllClose(alias.t(), m.narrow(0, 0, 3));
  }
}

TEST(Executor, WhatIsReadTwiceIsNotOverwritten) {
  // The parameter is its own gradient.
  std::string text = kAdam;
  text.replace(text.find("spmd::adam(%p, %g"), 17, "spmd::adam(%p, %p");
  const at::Tensor p = at::randn({6, 4}), m = at::randn({6, 4}), v = at::rand({6, 4}),
                   step = at::full({}, 3.0);
  const at::Tensor want[] = {p.clone(), m.clone(), v.clone()};
  at::_fused_adamw_({want[0]}, {p.clone()}, {want[1]}, {want[2]}, {}, {step}, 0.1, 0.9, 0.99, 0.1,
                    1e-6, false, false);
  const auto results = RunLoaded(text, {p, p, m, v, step});
  ASSERT_EQ(results.size(), 3);
  for (int k = 0; k < 3; ++k) ExpectAllClose(results[k], want[k]);
}

TEST(Executor, AliasedTilesAreNotOverwrittenWithinAProgram) {
  // %1 is a view of %0's tile, %2 would overwrite it; %x itself is shared by a move.
  const at::Tensor x = at::randn({4, 4});
  const auto results = RunLoaded(R"(
mesh @m [a=2]
program {
  %x: f32[4,4] @m {},{}
  %0: f32[4,4] @m {},{} = call aten::neg(%x)
  %1: f32[4,4] @m {a},{} = slice(%0) {a} dim(0)
  %2: f32[4,4] @m {},{} = call aten::exp(%0)
  free %0
  %3: f32[4,4] @m {a},{} = call aten::exp(%1)
  return %2, %3
}
)",
                                 {x});
  ASSERT_EQ(results.size(), 2);
  ExpectAllClose(results[0], x.neg().exp());
  ExpectAllClose(results[1], x.neg().exp());
}

TEST(Executor, ReplicatedOperandOfDifferentTermsIsNotOverwritten) {
  const at::Tensor x = at::randn({4}), y = at::randn({2, 4});
  const auto results = RunLoaded(R"(
mesh @m [a=2]
program {
  %x: f32[4] @m {}
  %y: f32[2,4] @m {a},{}
  %0: f32[4] @m {} = call aten::neg(%x)
  %1: f32[2,4] @m {a},{} = call aten::add.Tensor(%y, %0)
  free %0
  return %1
}
)",
                                 {x, y});
  ExpectAllClose(results.at(0), y.sub(x));
}

// --- writes to parts ---

// Rows of one half of %c are set, then all of the other half is.
constexpr const char* kCache = R"(
mesh @m [a=2]
program {
  scalar $0: float
  %c: f32[2,4,6] @m {},{},{a} donated
  %i: i64[1] @m {}
  %k: f32[1,6] @m {},{a}
  %0: f32[4,6] @m {},{a} = call aten::select.int(%c, dim=0, index=1)
  %1: f32[4,6] @m {},{a} = call aten::index_copy(%0, %i, %k, dim=0)
  free %0
  %2: f32[2,4,6] @m {},{},{a} = call aten::select_scatter(%c, %1, dim=0, index=1)
  free %c, %1
  %3: f32[4,6] @m {},{a} = call aten::select.int(%2, dim=0, index=0)
  %4: f32[4,6] @m {},{a} = call aten::add.Scalar(%3, other=$0)
  free %3
  %5: f32[2,4,6] @m {},{},{a} = call aten::select_scatter(%2, %4, dim=0, index=0)
  free %2
  return %5 -> %c
}
)";

at::Tensor WrittenCache(const at::Tensor& cache, int64_t row, const at::Tensor& k) {
  at::Tensor expected = cache.clone();
  expected[1][row].copy_(k[0]);
  expected[0].add_(1);
  return expected;
}

TEST(Executor, APartOfADonatedTileIsWrittenInPlace) {
  const auto loaded = LoadText(kCache);
  const auto backend = Cpu();
  const at::Tensor cache = at::randn({2, 4, 6}), k = at::randn({1, 6});
  const auto upload = [&](const at::Tensor& value, int input) {
    return Upload(value, loaded->program().LayoutOf(input), *backend);
  };
  // Nothing else owns the memory, but a view of it is alive.
  for (bool held : {false, true}) {
    TiledTensorPtr given = upload(cache, 0);
    const void* memory = given->tiles[1].data_ptr();
    const at::Tensor view = held ? given->tiles[1].select(0, 1) : at::Tensor();
    const at::Tensor before = held ? view.clone() : at::Tensor();
    std::vector<LoadedProgram::Argument> arguments{{std::move(given), true},
                                                   {upload(at::full({1}, 2, at::kLong), 1), false},
                                                   {upload(k, 2), false}};
    const auto results = loaded->Run(absl::MakeSpan(arguments), {1.0});
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ((*results)[0]->tiles[1].data_ptr() == memory, !held);
    ExpectAllClose(Assemble(*(*results)[0]), WrittenCache(cache, 2, k));
    if (held) ExpectAllClose(view, before);
  }
}

TEST(Executor, AnIndexOutOfRangeIsSeenBeforeAPartIsWritten) {
  const auto loaded = LoadText(kCache);
  const auto backend = Cpu();
  const at::Tensor cache = at::randn({2, 4, 6});
  for (int64_t row : {-1, 4}) {
    std::vector<LoadedProgram::Argument> arguments{
        {Upload(cache, loaded->program().LayoutOf(0), *backend), true},
        {Upload(at::full({1}, row, at::kLong), loaded->program().LayoutOf(1), *backend), false},
        {Upload(at::randn({1, 6}), loaded->program().LayoutOf(2), *backend), false}};
    const auto results = loaded->Run(absl::MakeSpan(arguments), {1.0});
    EXPECT_EQ(results.status().code(), absl::StatusCode::kOutOfRange) << results.status();
    ASSERT_NE(arguments[0].value, nullptr);
    ExpectAllClose(Assemble(*arguments[0].value), cache);
  }
}

TEST(Executor, AnIndexThatTheProgramMakesIsNotKnownBefore) {
  const auto loaded = LoadText(R"(
mesh @m [a=2]
program {
  %c: f32[4,6] @m {},{a} donated
  %i: i64[1] @m {}
  %k: f32[1,6] @m {},{a}
  %0: f32[4,6] @m {},{a} = call aten::neg(%c) updates(0)
  free %c
  %1: i64[1] @m {} = call aten::neg(%i)
  %2: f32[4,6] @m {},{a} = call aten::index_copy(%0, %1, %k, dim=0)
  free %0
  return %2 -> %c
}
)");
  const auto backend = Cpu();
  const at::Tensor cache = at::randn({4, 6});
  std::vector<LoadedProgram::Argument> arguments{
      {Upload(cache, loaded->program().LayoutOf(0), *backend), true},
      {Upload(at::full({1}, 2, at::kLong), loaded->program().LayoutOf(1), *backend), false},
      {Upload(at::randn({1, 6}), loaded->program().LayoutOf(2), *backend), false}};
  EXPECT_FALSE(loaded->Run(absl::MakeSpan(arguments), {}).ok());
  ASSERT_NE(arguments[0].value, nullptr);
  ExpectAllClose(Assemble(*arguments[0].value), cache);
}

TEST(Executor, APartOfAPartIsWrittenInPlace) {
  const auto loaded = LoadText(R"(
mesh @m [a=2]
program {
  %c: f32[2,4,6] @m {},{},{a} donated
  %0: f32[4,6] @m {},{a} = call aten::select.int(%c, dim=0, index=1)
  %1: f32[2,6] @m {},{a} = call aten::slice.Tensor(%0, dim=0, start=1, end=3, step=1)
  %2: f32[2,6] @m {},{a} = call aten::exp(%1)
  free %1
  %3: f32[4,6] @m {},{a} = call aten::slice_scatter(%0, %2, dim=0, start=1, end=3, step=1)
  free %0, %2
  %4: f32[2,4,6] @m {},{},{a} = call aten::select_scatter(%c, %3, dim=0, index=1)
  free %c, %3
  return %4 -> %c
}
)");
  const auto backend = Cpu();
  const at::Tensor cache = at::randn({2, 4, 6});
  TiledTensorPtr given = Upload(cache, loaded->program().LayoutOf(0), *backend);
  const void* memory = given->tiles[0].data_ptr();
  std::vector<LoadedProgram::Argument> arguments{{std::move(given), true}};
  const auto results = loaded->Run(absl::MakeSpan(arguments), {});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0]->tiles[0].data_ptr(), memory);
  at::Tensor expected = cache.clone();
  expected[1].narrow(0, 1, 2).exp_();
  ExpectAllClose(Assemble(*(*results)[0]), expected);
}

TEST(Executor, APartIsNotWrittenWhereTheWholeIsReadBeforeItIsPutBack) {
  const at::Tensor x = at::randn({2, 4});
  const auto results = RunLoaded(R"(
mesh @m [a=2]
program {
  %x: f32[2,4] @m {},{}
  %i: i64[2] @m {}
  %0: f32[2,4] @m {},{} = call aten::neg(%x)
  %1: f32[4] @m {} = call aten::select.int(%0, dim=0, index=0)
  %2: f32[4] @m {} = call aten::exp(%1)
  free %1
  %3: f32[2,4] @m {},{} = call aten::abs(%0)
  %4: f32[2,4] @m {},{} = call aten::select_scatter(%0, %2, dim=0, index=0)
  free %0, %2
  %5: f32[2,4] @m {},{} = call aten::neg(%x)
  %6: f32[1,4] @m {},{} = call aten::slice.Tensor(%5, dim=0, start=0, end=1, step=1)
  %7: f32[1,4] @m {},{} = call aten::index_add(%6, %i, %5, dim=0, alpha=1)
  free %6
  %8: f32[2,4] @m {},{} = call aten::slice_scatter(%5, %7, dim=0, start=0, end=1, step=1)
  free %5, %7
  return %3, %4, %8
}
)",
                                 {x, at::zeros({2}, at::kLong)});
  ASSERT_EQ(results.size(), 3);
  ExpectAllClose(results[0], x.abs());
  ExpectAllClose(results[1], at::stack({x[0].neg().exp(), x[1].neg()}));
  ExpectAllClose(results[2], at::stack({x[0].mul(-2).sub(x[1]), x[1].neg()}));
}

// Devices take turns: later ones read the whole tensor after the first could write its part.
TEST(Executor, APartIsNotWrittenWhileDevicesOfLaterTurnsReadTheWhole) {
  const auto loaded = LoadText(R"(
mesh @m [a=8]
program {
  %c: f32[2,4] @m {},{} donated
  %x: f32[16,4] @m {a},{}
  %0: f32[16,4] @m {a},{} = call aten::exp(%x)
  %1: f32[16,2] @m {a},{} = call aten::linear(%0, %c, _)
  free %0
  %2: f32[4] @m {} = call aten::select.int(%c, dim=0, index=1)
  %3: f32[4] @m {} = call aten::exp(%2)
  free %2
  %4: f32[2,4] @m {},{} = call aten::select_scatter(%c, %3, dim=0, index=1)
  free %c, %3
  return %4 -> %c, %1
}
)");
  const auto backend = Cpu();
  const at::Tensor whole = at::randn({2, 4}), x = at::randn({16, 4});
  std::vector<LoadedProgram::Argument> arguments{
      {Upload(whole, loaded->program().LayoutOf(0), *backend), true},
      {Upload(x, loaded->program().LayoutOf(1), *backend), false}};
  const auto results = loaded->Run(absl::MakeSpan(arguments), {});
  ASSERT_TRUE(results.ok()) << results.status();
  ExpectAllClose(Assemble(*(*results)[1]), x.exp().matmul(whole.t()));
  at::Tensor expected = whole.clone();
  expected[1].exp_();
  ExpectAllClose(Assemble(*(*results)[0]), expected);
}

TEST(Executor, DevicesTakeTurnsWhereThatSavesMemory) {
  if (at::get_num_threads() > 4) GTEST_SKIP() << "a wave has work for all cores";
  if (!TileMemory::Install()) GTEST_SKIP() << "nothing counts the bytes";
  using Turns = LoadedProgram::Options::Turns;
  const at::Tensor x = at::randn({8 * 256, 256});
  // Intermediates of 2 MiB in total, sharded over 8 devices; only their sum remains.
  constexpr const char* kCut = R"(
mesh @m [a=8]
program {
  %x: f32[2048,256] @m {a},{}
  %0: f32[2048,256] @m {a},{} = call aten::exp(%x)
  %1: f32[2048,256] @m {a},{} = call aten::sin(%0)
  %2: f32[2048,256] @m {a},{} = call aten::mul.Tensor(%0, %1)
  free %0, %1
  %3: f32[256] @m {} unreduced(sum){a} = call aten::sum.dim_IntList(%2, dim=[0], keepdim=false, dtype=none)
  free %2
  %4: f32[256] @m {} = all_reduce(%3) {a}
  free %3
  return %4
}
)";
  const int64_t at_once = MostInUse(kCut, {x}, Turns::kNever);
  EXPECT_GE(at_once, 2 * 2048 * 256 * 4);
  EXPECT_LE(MostInUse(kCut, {x}, Turns::kWhereTheyPay), at_once / 2);
  // Memory that all devices share is counted whichever device works.
  constexpr const char* kShared = R"(
mesh @m [a=8]
program {
  %x: f32[2048,256] @m {},{}
  %w: f32[8,256] @m {a},{}
  %0: f32[2048,256] @m {},{} = call aten::exp(%x)
  %1: f32[2048,8] @m {},{a} = call aten::linear(%0, %w, _)
  free %0
  return %1
}
)";
  EXPECT_EQ(MostInUse(kShared, {x, at::randn({8, 256})}, Turns::kWhereTheyPay),
            MostInUse(kShared, {x, at::randn({8, 256})}, Turns::kNever));
}

TEST(Executor, APartIsNotWrittenWhereElementsOfTheWholeAreOne) {
  const at::Tensor x = at::randn({4});
  const auto results = RunLoaded(R"(
mesh @m [a=2]
program {
  %x: f32[4] @m {}
  %0: f32[4] @m {} = call aten::neg(%x)
  %1: f32[3,4] @m {},{} = call aten::expand(%0, size=[3,4], implicit=false)
  free %0
  %2: f32[4] @m {} = call aten::select.int(%1, dim=0, index=1)
  %3: f32[4] @m {} = call aten::exp(%2)
  free %2
  %4: f32[3,4] @m {},{} = call aten::select_scatter(%1, %3, dim=0, index=1)
  free %1, %3
  return %4
}
)",
                                 {x});
  ASSERT_EQ(results.size(), 1);
  ExpectAllClose(results[0], at::stack({x.neg(), x.neg().exp(), x.neg()}));
}

// --- failures ---

constexpr const char* kFails = R"(
mesh @m [a=2]
program {
  scalar $0: float
  %p: f32[6,4] @m {a},{} donated
  %i: i64[3] @m {}
  %0: f32[6,4] @m {a},{} = call aten::mul.Scalar(%p, other=$0) updates(0)
  free %p
  %1: f32[3,4] @m {},{} = call spmd::full(size=[3,4], value=1.0, dtype=f32)
  %2: f32[3,4] @m {},{} = call aten::index_select(%1, %i, dim=0)
  return %0 -> %p, %2
}
)";

TEST(Executor, AFailureLeavesDonatedInputsAsTheyWere) {
  const auto loaded = LoadText(kFails);
  const auto backend = Cpu();
  const at::Tensor p = at::randn({6, 4});
  for (int64_t index : {7, 2}) {
    std::vector<LoadedProgram::Argument> arguments{
        {Upload(p, loaded->program().LayoutOf(0), *backend), true},
        {Upload(at::full({3}, index, at::kLong), loaded->program().LayoutOf(1), *backend), false}};
    const auto results = loaded->Run(absl::MakeSpan(arguments), {2.0});
    EXPECT_EQ(results.ok(), index == 2);
    if (results.ok()) {
      EXPECT_EQ(arguments[0].value, nullptr);
      ExpectAllClose(Assemble(*(*results)[0]), p.mul(2));
    } else {
      EXPECT_EQ(results.status().code(), absl::StatusCode::kOutOfRange) << results.status();
      EXPECT_THAT(
          std::string(results.status().message()),
          AllOf(HasSubstr("aten::index_select(f32[3,4], i64[3])"), HasSubstr("out of range")));
      ASSERT_NE(arguments[0].value, nullptr);
      ExpectAllClose(Assemble(*arguments[0].value), p);
    }
  }
}

TEST(Executor, AnInterruptStopsBeforeAnythingIsOverwritten) {
  const auto loaded = LoadText(kFails);
  const auto backend = Cpu();
  const at::Tensor p = at::randn({6, 4});
  std::vector<LoadedProgram::Argument> arguments{
      {Upload(p, loaded->program().LayoutOf(0), *backend), true},
      {Upload(at::full({3}, 1, at::kLong), loaded->program().LayoutOf(1), *backend), false}};
  std::atomic<bool> flag{true};
  SetInterruptCheck(&flag);
  EXPECT_EQ(loaded->Run(absl::MakeSpan(arguments), {2.0}).status().code(),
            absl::StatusCode::kCancelled);
  ExpectAllClose(Assemble(*arguments[0].value), p);
  flag = false;
  EXPECT_TRUE(loaded->Run(absl::MakeSpan(arguments), {2.0}).ok());
  SetInterruptCheck(nullptr);
}

TEST(Executor, ArgumentsInOtherLayoutsAreMoved) {
  const auto loaded = LoadText(kUpdate);
  const auto backend = Cpu();
  const GridPtr grid = loaded->program().grids[0];
  const GridPtr other = MakeGrid({3}, {"z"}, {4, 1, 0});
  const at::Tensor p = at::randn({6, 4}), g = at::randn({6, 4});
  const TiledTensorPtr parameter =
      Upload(p, Layout(grid, *Sharding::Parse("{},{a}", *grid), {6, 4}), *backend);
  const TiledTensorPtr gradient =
      Upload(g, Layout(other, *Sharding::Parse("{},{z}", *other), {6, 4}), *backend);
  const auto results = loaded->Run({{parameter, true}, {gradient, false}}, {1.0});
  ASSERT_TRUE(results.ok()) << results.status();
  ExpectAllClose(Assemble(*(*results)[0]), p.add(g));
  ExpectAllClose(Assemble(*parameter), p);
}

std::string LoadError(const std::string& call) {
  absl::StatusOr<Program> program = Program::Parse(absl::StrCat(R"(
mesh @m [a=2]
program {
  %x: f32[4,4] @m {a},{}
  %0: f32[4,4] @m {a},{} = call )",
                                                                call, "\n  return %0\n}\n"));
  EXPECT_TRUE(program.ok()) << program.status();
  return std::string(LoadedProgram::Load(*std::move(program), Cpu()).status().message());
}

TEST(Executor, LoadSaysWhatDoesNotFit) {
  EXPECT_EQ(LoadError("aten::nonsense(%x)"), "PyTorch has no operator 'aten::nonsense'");
  EXPECT_EQ(LoadError("aten::sum.nonsense(%x)"),
            "PyTorch has no operator 'aten::sum.nonsense' (the op exists, that overload does not)");
  EXPECT_EQ(LoadError("aten::relu(%x, alpha=2)"), "aten::relu has no argument 'alpha' (given 2)");
  EXPECT_EQ(LoadError("aten::add.Tensor(%x)"), "aten::add.Tensor needs a tensor for 'other'");
  EXPECT_EQ(LoadError("aten::relu(%x, %x)"), "aten::relu takes 1 tensor operands; 2 are given");
  EXPECT_EQ(LoadError("aten::leaky_relu(%x, negative_slope=\"a\")"),
            "aten::leaky_relu argument 'negative_slope' is a number; \"a\" does not fit");
  EXPECT_EQ(LoadError("aten::softplus_backward(%x, %x, beta=1)"),
            "aten::softplus_backward needs attribute 'threshold'");
}

TEST(Executor, AWrongResultShapeIsNamed) {
  const auto loaded = LoadText(R"(
mesh @m [a=2]
program {
  %x: f32[4,6] @m {a},{}
  %0: f32[4,6] @m {a},{} = call aten::sum.dim_IntList(%x, dim=[1], keepdim=true)
  return %0
}
)");
  const auto backend = Cpu();
  const auto status =
      loaded->Run({{Upload(at::randn({4, 6}), loaded->program().LayoutOf(0), *backend)}}, {})
          .status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("aten::sum.dim_IntList(f32[4,6])"),
                    HasSubstr("result 0 is Float[2, 1] where the program says Float[2, 6]")));
}

}  // namespace
}  // namespace spmd::runtime
