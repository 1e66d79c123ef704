// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/sum_of_products.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/workers.h"
#include "tests/cpp/runtime/most_in_use.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

using program::Program;
using Turns = LoadedProgram::Options::Turns;

std::vector<at::Tensor> RunText(const std::string& text, const std::vector<at::Tensor>& inputs,
                                LoadedProgram::Options options) {
  const auto backend = *MakeBackend("cpu", std::nullopt);
  absl::StatusOr<Program> program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status() << text;
  if (!program.ok()) return {};
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  const auto loaded = LoadedProgram::Load(*std::move(program), backend, options);
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
  if (!results.ok()) return values;
  for (const TiledTensorPtr& result : *results) values.push_back(Assemble(*result));
  return values;
}

// Which sums the cores can share depends on how many there are.
class SumOfProducts : public testing::Test {
 protected:
  void SetUp() override { SetThreads(2); }
  void TearDown() override { SetThreads(threads_); }

 private:
  // Setting it, even to what it is, is felt by the workers of other tests.
  static void SetThreads(int threads) {
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
  }
  const int threads_ = at::get_num_threads();
};

// Counts what ATen runs while it lives, by name; on all threads.
class CountOps {
 public:
  CountOps() {
    counts.clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&Count));
  }
  ~CountOps() { at::removeCallback(handle_); }
  int Of(const std::string& op) const { return counts[op]; }

 private:
  static std::unique_ptr<at::ObserverContext> Count(const at::RecordFunction& f) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++counts[f.name()];
    return nullptr;
  }
  static inline std::mutex mutex;
  static inline std::map<std::string, int> counts;
  at::CallbackHandle handle_;
};

// A product whose contraction, of size k, is sharded over `model`.
struct Case {
  const char* name;
  std::string call;  // of %x, %w, %b
  std::string x, w;  // types
  std::vector<int64_t> x_size, w_size;
  std::string result;  // dims
  at::Tensor (*expected)(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);
  bool small = false;  // for cores to share
};

std::string Text(const Case& c, const std::string& dtype = "f32") {
  return absl::StrReplaceAll(
      absl::StrCat("mesh @m [data=2, model=4]\nprogram {\n  %x: f32", c.x, "\n  %w: f32", c.w,
                   "\n  %b: f32[400] @m {}\n  %0: f32", c.result, " unreduced(sum){model} = call ",
                   c.call, "\n  %1: f32", c.result, " = all_reduce(%0) {model}\n  return %1\n}\n"),
      {{"f32", dtype}});
}

std::vector<Case> Cases() {
  return {
      {"linear",
       "aten::linear(%x, %w, %b) added_once(2: model)",
       "[404,2,16] @m {data},{},{model}",
       "[400,16] @m {},{model}",
       {404, 2, 16},
       {400, 16},
       "[404,2,400] @m {data},{},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
         return x.matmul(w.t()) + b;
       }},
      {"many rows",
       "aten::linear(%x, %w, %b) added_once(2: model)",
       "[1603,16] @m {data},{model}",
       "[400,16] @m {},{model}",
       {1603, 16},
       {400, 16},
       "[1603,400] @m {data},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
         return x.matmul(w.t()) + b;
       }},
      {"a bias of every device",
       "aten::linear(%x, %w, %b)",
       "[800,16] @m {data},{model}",
       "[400,16] @m {},{model}",
       {800, 16},
       {400, 16},
       "[800,400] @m {data},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
         return x.matmul(w.t()) + 4 * b;
       }},
      {"more columns than rows",
       "aten::linear(%x, %w, %b) added_once(2: model)",
       "[321,16] @m {data},{model}",
       "[400,16] @m {},{model}",
       {321, 16},
       {400, 16},
       "[321,400] @m {data},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
         return x.matmul(w.t()) + b;
       }},
      {"no bias, one row",
       "aten::linear(%x, %w, _)",
       "[16] @m {model}",
       "[400,16] @m {},{model}",
       {16},
       {400, 16},
       "[400] @m {}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor&) { return w.mv(x); },
       /*small=*/true},
      {"mm",
       "aten::mm(%x, %w)",
       "[1200,10] @m {data},{model}",
       "[10,70] @m {model},{}",
       {1200, 10},
       {10, 70},
       "[1200,70] @m {data},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor&) { return x.mm(w); }},
      {"input's gradient",
       "spmd::linear_dinput(%x, %w)",
       "[2,40,16] @m {data},{},{model}",
       "[16,1000] @m {model},{}",
       {2, 40, 16},
       {16, 1000},
       "[2,40,1000] @m {data},{},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor&) { return x.matmul(w); }},
      {"weight's gradient",
       "spmd::linear_dweight(%x, %w)",
       "[11,4,1000] @m {model},{},{data}",
       "[11,4,70] @m {model},{},{}",
       {11, 4, 1000},
       {11, 4, 70},
       "[1000,70] @m {data},{}",
       [](const at::Tensor& x, const at::Tensor& w, const at::Tensor&) {
         return x.reshape({44, 1000}).t().mm(w.reshape({44, 70}));
       }},
  };
}

constexpr int kMm = 5;

// The same with rows of the sum for every device along `model`.
std::string Scattered(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"%1: f32[1200,70] @m {data},{}", "%1: f32[1200,70] @m {data,model},{}"},
             {"all_reduce(%0) {model}", "reduce_scatter(%0) {model} dim(0)"}});
}

// With the same bits whether devices take turns, share their work or work for themselves.
TEST_F(SumOfProducts, IsTheSumOfTheProducts) {
  at::manual_seed(0);
  const at::Tensor b = at::randn({400});
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const at::Tensor x = at::randn(c.x_size), w = at::randn(c.w_size);
    std::vector<at::Tensor> alone;
    {
      const CountOps ops;
      alone = RunText(Text(c), {x, w, b}, {true, false, Turns::kNever});
      EXPECT_EQ(ops.Of("aten::addmm_") > 0, !c.small);
    }
    ASSERT_EQ(alone.size(), 1u);
    const at::Tensor expected = c.expected(x, w, b);
    EXPECT_TRUE(at::allclose(alone[0], expected, 1e-5, 1e-5)) << (alone[0] - expected).abs().max();
    const auto turns = RunText(Text(c), {x, w, b}, {true, false, Turns::kAlways});
    const auto copies = RunText(Text(c), {x, w, b}, {false, false, Turns::kNever});
    const auto both = RunText(Text(c), {x, w, b}, {false, false, Turns::kAlways});
    ASSERT_TRUE(turns.size() == 1 && copies.size() == 1 && both.size() == 1);
    EXPECT_TRUE(at::equal(copies[0], alone[0]));
    EXPECT_TRUE(at::equal(both[0], turns[0]));
    // What is too small is summed inside the products only where that is asked for.
    EXPECT_TRUE(c.small ? at::allclose(turns[0], alone[0], 1e-6, 1e-6)
                        : at::equal(turns[0], alone[0]));

    const auto doubles =
        RunText(Text(c, "f64"), {x.to(at::kDouble), w.to(at::kDouble), b.to(at::kDouble)},
                {true, false, Turns::kAlways});
    ASSERT_EQ(doubles.size(), 1u);
    EXPECT_TRUE(at::allclose(doubles[0],
                             c.expected(x.to(at::kDouble), w.to(at::kDouble), b.to(at::kDouble)),
                             1e-12, 1e-12));
  }
}

TEST_F(SumOfProducts, DoesNotDependOnTheNumberOfWorkers) {
  const at::Tensor b = at::randn({400});
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const at::Tensor x = at::randn(c.x_size), w = at::randn(c.w_size);
    std::vector<at::Tensor> one;
    {
      const NoWorkers alone;
      one = RunText(Text(c), {x, w, b}, {true, false, Turns::kWhereTheyPay});
    }
    const auto all = RunText(Text(c), {x, w, b}, {true, false, Turns::kWhereTheyPay});
    ASSERT_TRUE(one.size() == 1 && all.size() == 1);
    EXPECT_TRUE(at::equal(one[0], all[0]));
  }
}

TEST_F(SumOfProducts, OfSeveralProducts) {
  constexpr const char* kText = R"(
mesh @m [data=2, model=4]
program {
  %g: f32[900,8] @m {data},{model}
  %w: f32[8,100] @m {model},{}
  %h: f32[900,7] @m {data},{model}
  %v: f32[7,100] @m {model},{}
  %0: f32[900,100] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %1: f32[900,100] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%h, %v)
  %2: f32[900,100] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[900,100] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %4: f32[900,100] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%2, %3, alpha=1)
  %5: f32[900,100] @m {data},{} = all_reduce(%4) {model}
  return %5
}
)";
  const at::Tensor g = at::randn({900, 8}), w = at::randn({8, 100}), h = at::randn({900, 7}),
                   v = at::randn({7, 100});
  std::vector<at::Tensor> sums;
  for (const bool deduplicate : {true, false}) {
    const CountOps ops;
    sums.push_back(RunText(kText, {g, w, h, v}, {deduplicate, false, Turns::kNever}).at(0));
    // Two tiles of two blocks, each the sum of four partial sums of three products.
    EXPECT_EQ(ops.Of("aten::mm"), 2 * 2);
    EXPECT_EQ(ops.Of("aten::addmm_"), 2 * 2 * (4 * 3 - 1));
    EXPECT_EQ(ops.Of("aten::add"), 0);
  }
  EXPECT_TRUE(at::allclose(sums[0], g.matmul(w) * 2 + h.matmul(v), 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(sums[0], sums[1]));
  // Three columns of %h on four devices: one of the products is not there on all of them.
  const std::string some =
      absl::StrReplaceAll(kText, {{"[900,7]", "[900,3]"}, {"f32[7,100]", "f32[3,100]"}});
  const at::Tensor sum =
      RunText(some, {g, w, h.narrow(1, 0, 3), v.narrow(0, 0, 3)}, {true, false, Turns::kNever})
          .at(0);
  EXPECT_TRUE(
      at::allclose(sum, g.matmul(w) * 2 + h.narrow(1, 0, 3).matmul(v.narrow(0, 0, 3)), 1e-5, 1e-5));
}

// Each device's product is computed once: with deduplication as often as there are tiles of it,
// and without as often as there are devices, whatever else is made of it.
TEST_F(SumOfProducts, ComputesEachProductOnceIntoTheSum) {
  const Case c = Cases()[kMm];
  // 1,200 rows of 70 columns, sharded over 2: two blocks for each of the two tiles.
  const at::Tensor x = at::randn(c.x_size), w = at::randn(c.w_size), b = at::randn({400});
  for (const bool deduplicate : {true, false}) {
    const CountOps ops;
    RunText(Text(c), {x, w, b}, {deduplicate, false, Turns::kNever});
    EXPECT_EQ(ops.Of("aten::mm"), 2 * 2);
    EXPECT_EQ(ops.Of("aten::addmm_"), 2 * 2 * 3);
    EXPECT_EQ(ops.Of("aten::clone"), deduplicate ? 0 : 8 - 2);
  }
  // Devices along `data` hold the same.
  const std::string replicated = absl::StrReplaceAll(Text(c), {{"{data}", "{}"}});
  for (const bool deduplicate : {true, false}) {
    const CountOps ops;
    RunText(replicated, {x, w, b}, {deduplicate, false, Turns::kNever});
    const int sums = deduplicate ? 1 : 2, blocks = 4;
    EXPECT_EQ(ops.Of("aten::mm"), sums * blocks);
    EXPECT_EQ(ops.Of("aten::addmm_"), sums * blocks * 3);
  }
}

TEST_F(SumOfProducts, TakesNoMemoryForTerms) {
  if (!TileMemory::Install()) GTEST_SKIP() << "nothing counts the bytes";
  for (const std::string made :
       {"{},{} = all_reduce(%0) {model}", "{model},{} = reduce_scatter(%0) {model} dim(0)"}) {
    SCOPED_TRACE(made);
    const int64_t most = MostInUse(absl::StrReplaceAll(R"(
mesh @m [model=8]
program {
  %x: f32[512,64] @m {},{model}
  %w: f32[64,512] @m {model},{}
  %0: f32[512,512] @m {},{} unreduced(sum){model} = call aten::mm(%x, %w)
  %1: f32[512,512] @m MADE
  return %1
}
)",
                                                       {{"MADE", made}}),
                                   {at::randn({512, 64}), at::randn({64, 512})}, Turns::kNever);
    const int64_t sum = 512 * 512 * 4;
    EXPECT_GE(most, sum);
    EXPECT_LT(most, 2 * sum);
  }
}

// Rows that are not contiguous are copied, for one partial sum after another.
TEST_F(SumOfProducts, CopiesOfOperandsAreThoseOfOneTerm) {
  if (!TileMemory::Install()) GTEST_SKIP() << "nothing counts the bytes";
  constexpr const char* kText = R"(
mesh @m [model=8]
program {
  %x: f32[64,96,512] @m {},{},{model}
  %w: f32[64,512] @m {},{model}
  %t: f32[96,64,512] @m {},{},{model} = call aten::transpose.int(%x, dim0=0, dim1=1)
  %0: f32[96,64,64] @m {},{},{} unreduced(sum){model} = call aten::linear(%t, %w, _)
  free %t
  %1: f32[96,64,64] @m {},{},{} = all_reduce(%0) {model}
  return %1
}
)";
  const at::Tensor x = at::randn({64, 96, 512}), w = at::randn({64, 512});
  const int64_t sum = 96 * 64 * 64 * 4, term = 96 * 64 * 512 / 8 * 4;
  EXPECT_LT(MostInUse(kText, {x, w}, Turns::kNever), sum + 2 * term);
  const CountOps ops;
  const at::Tensor got = RunText(kText, {x, w}, {true, false, Turns::kNever}).at(0);
  EXPECT_GT(ops.Of("aten::addmm_"), 0);
  EXPECT_TRUE(at::allclose(got, x.transpose(0, 1).matmul(w.t()), 1e-4, 1e-4));
}

// Its tiles are parts of the sum's memory, whatever the turns; with deduplication off they are
// copies.
TEST_F(SumOfProducts, ScatteredByRows) {
  const Case c = Cases()[kMm];
  const std::string text = Scattered(Text(c));
  const at::Tensor x = at::randn(c.x_size), w = at::randn(c.w_size), b = at::randn({400});
  std::vector<at::Tensor> sums;
  for (const Turns turns : {Turns::kNever, Turns::kAlways}) {
    for (const bool deduplicate : {true, false}) {
      const CountOps ops;
      sums.push_back(RunText(text, {x, w, b}, {deduplicate, false, turns}).at(0));
      EXPECT_EQ(ops.Of("aten::mm"), 2 * 2);
      EXPECT_EQ(ops.Of("aten::addmm_"), 2 * 2 * 3);
      // Six devices take their parts; two computed the sums, and no result keeps a whole sum.
      EXPECT_EQ(ops.Of("aten::clone"), deduplicate ? 0 : 6 + 2);
    }
  }
  EXPECT_TRUE(at::allclose(sums[0], x.mm(w), 1e-5, 1e-5));
  for (const at::Tensor& sum : sums) EXPECT_TRUE(at::equal(sum, sums[0]));
  // Seven devices have 150 rows, the last 149.
  const std::string uneven = absl::StrReplaceAll(text, {{"[1200,", "[1199,"}});
  EXPECT_TRUE(at::equal(RunText(uneven, {x.narrow(0, 0, 1199), w, b}, {}).at(0),
                        RunText(uneven, {x.narrow(0, 0, 1199), w, b}, {false}).at(0)));
}

// Computing with one device's part does not change the others' parts.
TEST_F(SumOfProducts, PartsOfAScatteredSumAreNotOverwritten) {
  constexpr const char* kText = R"(
mesh @m [model=4]
program {
  %x: f32[800,8] @m {},{model}
  %w: f32[8,70] @m {model},{}
  %0: f32[800,70] @m {},{} unreduced(sum){model} = call aten::mm(%x, %w)
  %1: f32[800,70] @m {model},{} = reduce_scatter(%0) {model} dim(0)
  %2: f32[800,70] @m {model},{} = call aten::neg(%1) updates(0)
  free %1
  %3: f32[800,70] @m {model},{} = call aten::neg(%2) updates(0)
  free %2
  return %3
}
)";
  const at::Tensor x = at::randn({800, 8}), w = at::randn({8, 70});
  for (const Turns turns : {Turns::kNever, Turns::kAlways}) {
    const at::Tensor sum = RunText(kText, {x, w}, {true, false, turns}).at(0);
    EXPECT_TRUE(at::allclose(sum, x.mm(w), 1e-5, 1e-5));
  }
}

// Half types are rounded once, columns of a sum do not lie together, terms that are not there add
// nothing, and devices whose turns come in another order would wait for each other: these take the
// usual way, in which products are computed by themselves.
TEST_F(SumOfProducts, NotWhatIsNoSumOfWholeTerms) {
  const Case c = Cases()[kMm];
  const at::Tensor x = at::randn(c.x_size), w = at::randn(c.w_size), b = at::randn({400});
  const auto adds = [&](const std::string& text, const std::vector<at::Tensor>& inputs) {
    const CountOps ops;
    EXPECT_EQ(RunText(text, inputs, {true, false, Turns::kNever}).size(), 1u);
    return ops.Of("aten::addmm_");
  };
  EXPECT_GT(adds(Text(c), {x, w, b}), 0);
  EXPECT_EQ(adds(Text(c, "bf16"), {x.to(at::kBFloat16), w.to(at::kBFloat16), b.to(at::kBFloat16)}),
            0);
  EXPECT_EQ(
      adds(absl::StrReplaceAll(
               Text(c), {{"%1: f32[1200,70] @m {data},{}", "%1: f32[1200,70] @m {data},{model}"},
                         {"all_reduce(%0) {model}", "reduce_scatter(%0) {model} dim(1)"}}),
           {x, w, b}),
      0);
  EXPECT_EQ(adds(absl::StrReplaceAll(Text(c), {{"[data=2, model=4]",
                                                "[data=2, model=4] devices=[7,6,5,4,3,2,1,0]"}}),
                 {x, w, b}),
            0);
  // Three columns on four devices: the last has none.
  EXPECT_EQ(adds(absl::StrReplaceAll(Text(c), {{"[1200,10]", "[1200,3]"}, {"[10,70]", "[3,70]"}}),
                 {x.narrow(1, 0, 3), w.narrow(0, 0, 3), b}),
            0);
}

TEST(ProductsInto, BlocksCoverTheSum) {
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                     {191, 3},
                                                                     {385, 2},
                                                                     {2, 385},
                                                                     {385, 100},
                                                                     {100, 385},
                                                                     {1000, 1000},
                                                                     {10, 5000}}) {
    const at::Tensor a = at::randn({m, 5}, at::kDouble), b = at::randn({5, n}, at::kDouble),
                     c = at::randn({m, 4}, at::kDouble), d = at::randn({4, n}, at::kDouble),
                     bias = at::randn({n}, at::kDouble);
    for (const bool adds : {false, true}) {
      const at::Tensor sum = at::full({m, n}, 7.0, at::kDouble);
      const ProductsInto into(sum, adds, {{a, b, bias}, {c, d, bias}});
      EXPECT_EQ(into.num_blocks() > 1, m * n >= 2 << 14);
      for (int64_t k = into.num_blocks(); k-- > 0;) into.ComputeBlock(k);
      const at::Tensor expected = a.mm(b) + c.mm(d) + 2 * bias + (adds ? 7.0 : 0.0);
      EXPECT_TRUE(at::allclose(sum, expected, 1e-12, 1e-12)) << m << " × " << n;
    }
  }
}

}  // namespace
}  // namespace spmd::runtime
