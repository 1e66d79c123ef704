// SPDX-License-Identifier: Apache-2.0
// Plans that are taken over from graphs of other sizes.
#include "csrc/partition/earlier_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_replace.h"
#include "csrc/partition/compile.h"
#include "tests/cpp/partition/random_model.h"

namespace spmd::partition {
namespace {

ir::Graph Parsed(const std::string& text) {
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *std::move(graph) : ir::Graph();
}

// A layer of a sequence model with a batch of B, whose weights are gathered along data.
ir::Graph Layer(int64_t batch) {
  return Parsed(
      absl::StrReplaceAll(R"(mesh @m [data=4, model=2]
graph {
  %x: f32[B,6,64] @m {data},{},{}
  %w1: f32[256,64] @m {model},{data}
  %w2: f32[64,256] @m {data},{model}
  %h: f32[B,6,256] = aten::linear(%x, %w1, _)
  %a: f32[B,6,256] = aten::relu(%h)
  %y: f32[B,6,64] = aten::linear(%a, %w2, _)
  %v: f32[N,64] = aten::view(%y, size=[N,64])
  return %v
})",
                          {{"B", std::to_string(batch)}, {"N", std::to_string(6 * batch)}}));
}

Compiled CompiledFrom(const ir::Graph& graph, std::shared_ptr<const SearchedPlan> earlier = nullptr,
                      bool explain = false) {
  CompileOptions options;
  options.verify = true;
  options.explain = explain;
  options.earlier = std::move(earlier);
  absl::StatusOr<Compiled> compiled = Compile(graph, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return compiled.ok() ? *std::move(compiled) : Compiled();
}

EarlierPlans::Form FormOf(const ir::Graph& graph) {
  return EarlierPlans::FormOf(graph, machine::Nominal());
}

TEST(EarlierPlans, AreFoundForSizesUpToTwice) {
  EarlierPlans plans;
  const auto plan = std::make_shared<SearchedPlan>();
  plans.Add(FormOf(Layer(32)), plan);
  for (const int64_t batch : {16, 31, 32, 33, 64}) {
    EXPECT_EQ(plans.Find(FormOf(Layer(batch))), plan) << batch;
  }
  for (const int64_t batch : {1, 15, 65, 128}) {
    EXPECT_EQ(plans.Find(FormOf(Layer(batch))), nullptr) << batch;
  }
}

TEST(EarlierPlans, BelongToOpsAndAnnotations) {
  const std::string text = Layer(32).ToString();
  const EarlierPlans::Form form = FormOf(Parsed(text));
  const auto same = [&](const std::string& from, const std::string& to) {
    const std::string other = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(text, other);
    return FormOf(Parsed(other)).common == form.common;
  };
  EXPECT_FALSE(same("aten::relu", "aten::sigmoid"));
  EXPECT_FALSE(same("{model},{data}", "{data},{model}"));
  EXPECT_FALSE(same("data=4, model=2", "data=2, model=4"));
  EXPECT_FALSE(same("f32", "f64"));
  EXPECT_TRUE(same("32,6,", "48,6,"));
}

// 17, 31 and 49 do not divide evenly. Boundaries of shards belong to sizes: a search finds them.
TEST(EarlierPlans, GiveTheProgramThatASearchGives) {
  const Compiled first = CompiledFrom(Layer(32));
  ASSERT_NE(first.searched, nullptr);
  for (const int64_t batch : {16, 17, 31, 32, 49, 56, 64}) {
    const ir::Graph graph = Layer(batch);
    const Compiled over = CompiledFrom(graph, first.searched);
    const bool searched = batch % 4 != 0;
    EXPECT_EQ(over.searched != nullptr, searched) << "a plan that was taken over is not kept";
    EXPECT_EQ(over.program.ToString(), CompiledFrom(graph).program.ToString()) << batch;
  }
}

// The rows of w1 do not divide evenly, in any batch.
TEST(EarlierPlans, KeepUnevenShardsOfSizesThatAreTheSame) {
  const auto layer = [](int64_t batch) {
    return Parsed(absl::StrReplaceAll(Layer(batch).ToString(), {{"256", "254"}}));
  };
  const Compiled first = CompiledFrom(layer(32));
  ASSERT_THAT(first.program.ToString(), testing::HasSubstr("254"));
  const Compiled over = CompiledFrom(layer(48), first.searched);
  EXPECT_EQ(over.searched, nullptr);
  EXPECT_EQ(over.program.ToString(), CompiledFrom(layer(48)).program.ToString());
}

TEST(EarlierPlans, AreTakenOverWithTheSameReasons) {
  const Compiled first = CompiledFrom(Layer(32));
  const Compiled over = CompiledFrom(Layer(48), first.searched, /*explain=*/true);
  const Compiled own = CompiledFrom(Layer(48));
  EXPECT_EQ(over.searched, nullptr);
  EXPECT_EQ(over.graph.ToString(), own.graph.ToString());
  for (ir::ValueId v = 0; v < own.graph.num_values(); ++v) {
    EXPECT_EQ(over.reasons.Explain(over.graph, v), own.reasons.Explain(own.graph, v));
  }
}

// A softmax over a sharded dimension is decomposed, and its values are propagated to in a round of
// their own.
TEST(EarlierPlans, OfDecomposedOpsAreTakenOver) {
  const auto softmax = [](int64_t batch) {
    return Parsed(absl::StrReplaceAll(R"(mesh @m [data=4, model=2]
graph {
  %x: f32[B,64] @m {data},{model}
  %w: f32[64,64] @m {data},{}
  %h: f32[B,64] = aten::linear(%x, %w, _)
  %s: f32[B,64] = aten::add.Tensor(%h, %x, alpha=1)
  %y: f32[B,64] = aten::_softmax(%s, dim=1, half_to_float=false)
  return %y
})",
                                      {{"B", std::to_string(batch)}}));
  };
  const Compiled first = CompiledFrom(softmax(32));
  EXPECT_EQ(first.decomposed.size(), 1);
  ASSERT_NE(first.searched, nullptr);
  EXPECT_GT(first.searched->propagated.size(), 1);
  const Compiled over = CompiledFrom(softmax(48), first.searched);
  EXPECT_EQ(over.searched, nullptr);
  EXPECT_EQ(over.program.ToString(), CompiledFrom(softmax(48)).program.ToString());
}

TEST(EarlierPlans, OfOtherOpsAreNotTakenOver) {
  const Compiled layer = CompiledFrom(Layer(32));
  const ir::Graph other =
      Parsed(absl::StrReplaceAll(Layer(32).ToString(), {{"aten::relu", "aten::sigmoid"}}));
  const Compiled compiled = CompiledFrom(other, layer.searched);
  EXPECT_NE(compiled.searched, nullptr) << "a search of its own";
  EXPECT_EQ(compiled.program.ToString(), CompiledFrom(other).program.ToString());
}

// The passes before the choice may make other ops for other sizes; the plan's proposals then speak
// of values that the graph does not have.
TEST(EarlierPlans, OfLargerGraphsAreNotTakenOver) {
  Compiled layer = CompiledFrom(Layer(32));
  auto plan = std::make_shared<SearchedPlan>(*layer.searched);
  plan->proposals.push_back({.value = 1'000'000, .grid = 0, .sharding = Sharding::Replicated(2)});
  const ir::Graph small = Parsed(R"(mesh @m [data=4]
graph {
  %x: f32[32,8] @m {data},{}
  %y: f32[32,8] = aten::relu(%x)
  return %y
})");
  EXPECT_NE(CompiledFrom(small, plan).searched, nullptr);
}

// An optimizer's state: in the second step it lies as the first one left it, which changes nothing;
// if it lies otherwise, the plan is searched.
TEST(EarlierPlans, FitInputsThatLieAsTheyDid) {
  const auto step = [](const std::string& state) {
    return Parsed(absl::StrReplaceAll(R"(mesh @m [data=4]
graph {
  %w: f32[64,8] @m {data},{}
  %state: f32[64,8]STATE
  %next: f32[64,8] = aten::add.Tensor(%state, %w, alpha=1)
  return %next -> %state
})",
                                      {{"STATE", state}}));
  };
  const ir::Graph first = step(""), same = step(" @m~ {data},{}"), other = step(" @m~ {},{data}");
  EXPECT_EQ(FormOf(first).common, FormOf(same).common);
  EXPECT_EQ(FormOf(first).common, FormOf(other).common);
  const Compiled compiled = CompiledFrom(first);
  EXPECT_EQ(CompiledFrom(same, compiled.searched).searched, nullptr);
  EXPECT_NE(CompiledFrom(other, compiled.searched).searched, nullptr);
}

TEST(EarlierPlans, OfRandomModelsGiveTheirPrograms) {
  std::mt19937 random(0);
  int taken_over = 0;
  for (int i = 0; i < 300; ++i) {
    const ir::Graph graph = RandomModel(random);
    const Compiled first = CompiledFrom(graph);
    if (first.searched == nullptr) continue;
    const Compiled again = CompiledFrom(graph, first.searched);
    EXPECT_EQ(again.searched, nullptr) << graph.ToString();
    EXPECT_EQ(again.program.ToString(), first.program.ToString()) << graph.ToString();
    ++taken_over;
  }
  EXPECT_GT(taken_over, 100);
}

}  // namespace
}  // namespace spmd::partition
