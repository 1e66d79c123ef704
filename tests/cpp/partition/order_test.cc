// SPDX-License-Identifier: Apache-2.0
// What an order holds at its peak, against the best of all orders; what merging adds; and that the
// work grows with the program only.
#include "csrc/partition/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/partition/base_order.h"
#include "csrc/partition/compile.h"
#include "csrc/program/analysis.h"
#include "csrc/program/uses.h"
#include "tests/cpp/partition/first_results.h"
#include "tests/cpp/partition/random_model.h"

namespace spmd::partition {
namespace {

using program::Program;
using program::ValueId;

constexpr int64_t kUnlimited = int64_t{1} << 60;

int64_t Peak(Program program) {
  program::InsertFrees(program);
  return program::PeakMemory(program).peak_bytes;
}

// The program of a random model as it comes to the pass.
Program RandomProgram(std::mt19937& random) {
  const auto text = TextAfter(RandomModel(random), "localise");
  EXPECT_TRUE(text.ok()) << text.status();
  return *Program::Parse(*text);
}

// The least peak of all orders, found over all sets of instructions that can have run.
// Requires: at most 16 instructions.
int64_t BestPeak(const Program& program) {
  const size_t n = program.instructions.size();
  const std::vector<int64_t> bytes = program::HeldBytes(program);
  const program::Uses uses(program);
  std::vector<uint32_t> needs(n, 0), users(program.values.size(), 0);
  std::vector<int> made_by(program.values.size(), -1);
  std::vector<bool> kept(program.values.size(), false), exists(program.values.size(), false);
  for (const auto& input : program.inputs) kept[input.value] = exists[input.value] = true;
  for (const auto& output : program.outputs) kept[output.value] = true;
  for (size_t i = 0; i < n; ++i) {
    for (ValueId v : program.instructions[i].results) made_by[v] = static_cast<int>(i);
  }
  for (size_t v = 0; v < users.size(); ++v) {
    if (made_by[v] >= 0) exists[v] = true;
    for (const int u : uses.Of(static_cast<ValueId>(v))) {
      users[v] |= 1u << u;
      if (made_by[v] >= 0) needs[u] |= 1u << made_by[v];
    }
  }
  // The bytes that are alive once the instructions of `run` have run, and at the end of `i`.
  const auto alive = [&](uint32_t run, int i) {
    int64_t sum = 0;
    for (size_t v = 0; v < users.size(); ++v) {
      if (!exists[v]) continue;
      if (made_by[v] >= 0 && made_by[v] != i && !(run >> made_by[v] & 1)) continue;
      const bool used_later = (users[v] & ~run) != 0;
      if (kept[v] || used_later || made_by[v] == i) sum += bytes[v];
    }
    return sum;
  };
  std::vector<int64_t> least(size_t{1} << n, kUnlimited);
  least[0] = alive(0, -1);
  for (uint32_t run = 0; run < least.size(); ++run) {
    if (least[run] == kUnlimited) continue;
    for (size_t i = 0; i < n; ++i) {
      if ((run >> i & 1) || (needs[i] & ~run) != 0) continue;
      int64_t& next = least[run | 1u << i];
      next = std::min(next, std::max(least[run], alive(run, static_cast<int>(i))));
    }
  }
  return least.back();
}

// The example of base_order.h.
constexpr absl::string_view kTwoUpdates = R"(mesh @m [x=2]
program {
  %g: f32[4,8,8] @m {x},{},{}
  %v: f32[8,8] @m {x},{} donated
  %w: f32[8,8] @m {x},{} donated
  %1: f32[8,8] @m {},{} unreduced(sum){x} = call aten::sum.dim_IntList(%g, dim=[0], keepdim=false, dtype=none)
  %2: f32[8,8] @m {x},{} = call aten::mul.Scalar(%w, other=2)
  %3: f32[8,8] @m {},{} unreduced(sum){x} = call aten::sum.dim_IntList(%g, dim=[0], keepdim=false, dtype=none)
  %4: f32[8,8] @m {x},{} = call aten::mul.Scalar(%v, other=2)
  %5: f32[8,8] @m {x},{} = reduce_scatter(%1) {x} dim(0)
  %7: f32[8,8] @m {x},{} = call aten::sub.Tensor(%2, %5, alpha=1)
  %6: f32[8,8] @m {x},{} = reduce_scatter(%3) {x} dim(0)
  %8: f32[8,8] @m {x},{} = call aten::sub.Tensor(%4, %6, alpha=1)
  return %7 -> %w, %8 -> %v
}
)";

TEST(Order, GradientsAreCutAsTheyAreMade) {
  Program program = *Program::Parse(kTwoUpdates);
  BaseOrder(program);
  EXPECT_EQ(FirstResults(program), "1 5 3 6 2 7 4 8");
  Order(program, {});
  EXPECT_EQ(FirstResults(program), "1 5 3 6 2 7 4 8");
}

// One reduce_scatter moves 256 bytes. Two are one where 512 may be moved and 384 held: the first
// operand until the second is made, and a half of each at the end.
TEST(Order, MergesUpToTheCapAndTheSlack) {
  const auto order = [](const OrderOptions& options) {
    Program program = *Program::Parse(kTwoUpdates);
    BaseOrder(program);
    Order(program, options);
    return FirstResults(program);
  };
  EXPECT_EQ(order({.cap_bytes = 512, .slack_bytes = 1024}), "1 3 5 2 7 4 8");
  EXPECT_EQ(order({.cap_bytes = 511, .slack_bytes = 1024}), "1 3 5 2 7 4 6 8");
  EXPECT_EQ(order({.cap_bytes = 512, .slack_bytes = 0}), "1 5 3 6 2 7 4 8");
}

// The caps follow the link's latency and the device's memory, and the slack what is free of it.
TEST(Order, CapsAreOfTheLinkAndTheMemory) {
  Program program = *Program::Parse(kTwoUpdates);
  BaseOrder(program);
  const int64_t peak = Peak(program);
  machine::Machine machine;
  machine.latency = 1e-6;
  machine.link_bandwidth = 1e9;
  machine.memory_bytes = int64_t{256} << 20;
  OrderOptions options = OptionsFor(program, machine, 0);
  EXPECT_EQ(options.gather_cap_bytes, 64'000);
  EXPECT_EQ(options.cap_bytes, 1 << 20);
  EXPECT_EQ(options.slack_bytes, 4 << 20);
  machine.latency = 1e-3;
  options = OptionsFor(program, machine, 0);
  EXPECT_EQ(options.gather_cap_bytes, 64'000'000);
  EXPECT_EQ(options.cap_bytes, 64'000'000);
  machine.memory_bytes = peak + 100;
  EXPECT_EQ(OptionsFor(program, machine, 0).slack_bytes, 100);
  machine.memory_bytes = peak;
  EXPECT_EQ(OptionsFor(program, machine, 0).slack_bytes, peak / 1024);
  EXPECT_EQ(OptionsFor(program, machine, 7).cap_bytes, 7);
  EXPECT_EQ(OptionsFor(program, machine::NominalWithFreeMoves(), 0).slack_bytes, int64_t{1} << 62);
}

// Weights of 64 bytes, and an activation of 256 at the end, for which there is room at the start.
constexpr absl::string_view kTwoGathers = R"(mesh @m [x=2]
program {
  %x: f32[4,4] @m {},{}
  %v: f32[4,4] @m {x},{}
  %w: f32[4,4] @m {x},{}
  %1: f32[4,4] @m {},{} = all_gather(%v) {x} dim(0)
  %2: f32[4,4] @m {},{} = call aten::mm(%x, %1)
  %3: f32[4,4] @m {},{} = call aten::relu(%2)
  %4: f32[4,4] @m {},{} = all_gather(%w) {x} dim(0)
  %5: f32[4,4] @m {},{} = call aten::mm(%3, %4)
  %6: f32[8,8] @m {},{} = call aten::repeat(%5, repeats=[2,2])
  return %6
}
)";

TEST(Order, GathersOneAheadWhereThePeakStays) {
  Program program = *Program::Parse(kTwoGathers);
  const int64_t before = Peak(program);
  Order(program, {});
  EXPECT_EQ(FirstResults(program), "1 4 2 3 5 6");
  EXPECT_EQ(Peak(program), before);
  // The large activation is at the start.
  program = *Program::Parse(kTwoGathers);
  program.values[program.instructions[1].results[0]].type.dims = {8, 8};
  program.values[program.instructions.back().results[0]].type.dims = {4, 4};
  Order(program, {});
  EXPECT_EQ(FirstResults(program), "1 2 3 4 5 6");
}

TEST(Order, HoldsLittleMoreThanTheBestOfAllOrders) {
  std::mt19937 random(1);
  int compared = 0, best = 0;
  while (compared < 200) {
    Program program = RandomProgram(random);
    if (program.instructions.size() > 12 || program.instructions.empty()) continue;
    const int64_t least = BestPeak(program);
    BaseOrder(program);
    ASSERT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    Order(program, {});
    const int64_t peak = Peak(program);
    EXPECT_GE(peak, least);
    EXPECT_LE(peak, 1.3 * static_cast<double>(least)) << program.ToString();
    best += peak == least;
    ++compared;
  }
  EXPECT_GE(best, compared * 2 / 3);
}

TEST(Order, MergingHoldsNoMoreThanTheSlack) {
  std::mt19937 random(2);
  for (int n = 0; n < 300; ++n) {
    Program program = RandomProgram(random);
    BaseOrder(program);
    const int64_t before = Peak(program);
    const OrderOptions options{.cap_bytes = 1 + static_cast<int64_t>(random() % 2000),
                               .gather_cap_bytes = 1 + static_cast<int64_t>(random() % 2000),
                               .slack_bytes = static_cast<int64_t>(random() % 500)};
    Order(program, options);
    ASSERT_TRUE(program::Verify(program).ok()) << program::Verify(program);
    EXPECT_LE(Peak(program), before + options.slack_bytes) << program.ToString();
  }
}

// Layers of a network that waits for a sum in each, then a norm and an update of each weight.
std::string OrderedLayers(int n) {
  std::string text = R"(mesh @m [x=2]
program {
  %h0: f32[4,4] @m {},{}
)";
  std::string rest, returned;
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&text, "  %w", i, ": f32[4,4] @m {x},{} donated\n");
    absl::StrAppend(&rest, "  %g", i, ": f32[4,4] @m {},{} = all_gather(%w", i, ") {x} dim(0)\n");
    absl::StrAppend(&rest, "  %p", i, ": f32[4,4] @m {},{} unreduced(sum){x} = call aten::mm(%h", i,
                    ", %g", i, ")\n");
    absl::StrAppend(&rest, "  %h", i + 1, ": f32[4,4] @m {},{} = all_reduce(%p", i, ") {x}\n");
    absl::StrAppend(&rest, "  %d", i, ": f32[4,4] @m {},{} unreduced(sum){x} = call aten::mm(%h",
                    i + 1, ", %h", i + 1, ")\n");
    absl::StrAppend(&rest, "  %n", i, ": f32[] @m unreduced(sum){x} = call aten::sum(%w", i,
                    ", dtype=none)\n");
  }
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&rest, "  %r", i, ": f32[4,4] @m {x},{} = reduce_scatter(%d", i,
                    ") {x} dim(0)\n");
    absl::StrAppend(&rest, "  %s", i, ": f32[] @m = all_reduce(%n", i, ") {x}\n");
    absl::StrAppend(&rest, "  %q", i, ": f32[] @m = call aten::sqrt(%s", i, ")\n");
    absl::StrAppend(&rest, "  %t", i, ": f32[4,4] @m {x},{} = call aten::mul.Tensor(%r", i, ", %q",
                    i, ")\n");
    absl::StrAppend(&returned, i == 0 ? "  return %t" : ", %t", i, " -> %w", i);
  }
  return absl::StrCat(text, rest, returned, "\n}\n");
}

TEST(Order, LooksAtEachInstructionABoundedNumberOfTimes) {
  const auto steps_of = [](int n, const OrderOptions& options) {
    auto program = Program::Parse(OrderedLayers(n));
    EXPECT_TRUE(program.ok()) << program.status();
    EXPECT_TRUE(program::Verify(*program).ok()) << program::Verify(*program);
    BaseOrder(*program);
    return Order(*program, options).steps;
  };
  for (const OrderOptions& options :
       {OrderOptions{kUnlimited, kUnlimited, kUnlimited}, OrderOptions{256, 256, 1024},
        OrderOptions{1 << 20, 1 << 20, 100}, OrderOptions{0, 0, 0}}) {
    const int64_t once = steps_of(500, options);
    EXPECT_LE(steps_of(1000, options), 2.1 * static_cast<double>(once));
    EXPECT_LE(once, 500 * 200);
  }
}

}  // namespace
}  // namespace spmd::partition
