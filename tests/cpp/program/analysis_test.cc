// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd::program {
namespace {

using ::testing::ElementsAre;

Program VerifiedProgram(absl::string_view text) {
  auto program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  const absl::Status status = Verify(*program);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(program);
}

constexpr char kAnalysedStep[] = R"(mesh @m [x=4]
program {
  %a: f32[8] @m {x}
  %w: f32[8] @m {} donated
  %unused: f32[16] @m {} donated
  %0: f32[8] @m {} = all_gather(%a) {x} dim(0)
  %1: f32[8] @m {}, %2: f32[8] @m {} = call f(%0, %w)
  %3: f32[8] @m {x} = slice(%1) {x} dim(0)
  return %3, %a
}
)";

TEST(InsertFreesTest, FreesAfterTheLastUse) {
  Program p = VerifiedProgram(kAnalysedStep);
  InsertFrees(p);
  const std::string expected = R"(mesh @m [x=4]
program {
  %a: f32[8] @m {x}
  %w: f32[8] @m {} donated
  %unused: f32[16] @m {} donated
  free %unused
  %0: f32[8] @m {} = all_gather(%a) {x} dim(0)
  %1: f32[8] @m {}, %2: f32[8] @m {} = call f(%0, %w)
  free %w, %0, %2
  %3: f32[8] @m {x} = slice(%1) {x} dim(0)
  free %1
  return %3, %a
}
)";
  EXPECT_EQ(p.ToString(), expected);
  InsertFrees(p);
  EXPECT_EQ(p.ToString(), expected);
  EXPECT_TRUE(Verify(p).ok()) << Verify(p);
}

TEST(PeakMemoryTest, CountsWhatIsAliveTogether) {
  Program p = VerifiedProgram(kAnalysedStep);
  InsertFrees(p);
  const MemoryReport report = PeakMemory(p);
  EXPECT_EQ(report.input_bytes, 8 + 32 + 64);
  EXPECT_EQ(report.output_bytes, 8 + 8);
  // %a 8, %w 32, %0 32, %1 32, %2 32.
  EXPECT_EQ(report.peak_bytes, 136);
  EXPECT_EQ(p.instructions[report.instruction].op, "f");
  std::vector<std::string> names;
  for (const LiveValue& live : report.live) names.push_back(p.values[live.value].name);
  EXPECT_THAT(names, ElementsAre("w", "0", "1", "2", "a"));
}

TEST(PeakMemoryTest, AnUpdateNeedsNoNewTiles) {
  Program p = VerifiedProgram(R"(mesh @m [x=4]
program {
  %w: f32[100] @m {} donated
  %0: f32[100] @m {} = call f(%w) updates(0)
  %1: f32[100] @m {} = call f(%0) updates(0)
  return %1 -> %w
}
)");
  InsertFrees(p);
  EXPECT_EQ(PeakMemory(p).peak_bytes, 400);
  EXPECT_EQ(PeakMemory(p).instruction, -1);
}

TEST(PeakMemoryTest, TermsOfHalfTypesAreFloat) {
  Program p = VerifiedProgram(R"(mesh @m [x=4]
program {
  %a: bf16[8] @m {x}
  %0: bf16[6] @m {} unreduced(sum){x} = call f(%a)
  %1: bf16[6] @m {} = all_reduce(%0) {x}
  return %1
}
)");
  InsertFrees(p);
  EXPECT_EQ(PeakMemory(p).peak_bytes, 4 + 24 + 12);
}

// A straight line of calls on random earlier values.
Program RandomProgram(std::mt19937& rng) {
  Program p;
  p.grids = {*Grid::Parse("[x=2, y=3]")};
  p.grid_names = {"m"};
  auto add = [&] {
    const Dims dims = {static_cast<int64_t>(rng() % 50)};
    return p.AddValue({{DType::kF32, dims}, 0, RandomSharding(rng, *p.grids[0], dims), {}, ""});
  };
  for (size_t n = rng() % 4; n > 0; --n) p.inputs.push_back({add(), rng() % 2 == 0});
  for (size_t n = rng() % 12; n > 0; --n) {
    Instruction call;
    call.op = "f";
    for (size_t k = rng() % 3; k > 0 && !p.values.empty(); --k) {
      call.operands.push_back(static_cast<ValueId>(rng() % p.values.size()));
    }
    for (size_t k = rng() % 3; k > 0; --k) call.results.push_back(add());
    p.instructions.push_back(call);
  }
  for (size_t k = rng() % 3; k > 0 && !p.values.empty(); --k) {
    p.outputs.push_back({static_cast<ValueId>(rng() % p.values.size())});
  }
  return p;
}

TEST(AnalysisTest, FreesAndPeaksAgreeWithCountingAtEachStep) {
  std::mt19937 rng(61);
  for (int i = 0; i < 2000; ++i) {
    const Program bare = RandomProgram(rng);
    ASSERT_TRUE(Verify(bare).ok()) << Verify(bare) << bare.ToString();
    Program freed = bare;
    InsertFrees(freed);
    ASSERT_TRUE(Verify(freed).ok()) << Verify(freed) << freed.ToString();
    // By definition: alive during call i is what was defined by then and is used by it or after it,
    // returned, or the caller's.
    std::set<ValueId> kept;
    std::map<ValueId, int> defined;
    for (const Input& input : bare.inputs) {
      defined[input.value] = -1;
      if (!input.donated) kept.insert(input.value);
    }
    for (const Output& output : bare.outputs) kept.insert(output.value);
    int64_t peak = 0;
    for (const Input& input : bare.inputs) peak += bare.TileBytes(input.value);
    for (int at = 0; at < static_cast<int>(bare.instructions.size()); ++at) {
      for (ValueId id : bare.instructions[at].results) defined[id] = at;
      int64_t alive = 0;
      for (const auto& [id, when] : defined) {
        bool needed = kept.count(id) > 0 || when == at;
        for (size_t user = at; user < bare.instructions.size(); ++user) {
          for (ValueId used : bare.instructions[user].operands) needed = needed || used == id;
        }
        if (needed) alive += bare.TileBytes(id);
      }
      peak = std::max(peak, alive);
    }
    EXPECT_EQ(PeakMemory(freed).peak_bytes, peak) << freed.ToString();
    int64_t listed = 0;
    for (const LiveValue& live : PeakMemory(freed).live) listed += live.bytes;
    EXPECT_EQ(listed, peak);
  }
}

TEST(TrafficTest, CollectivesByTheFormulas) {
  const Program p = VerifiedProgram(R"(mesh @m [data=2, model=4]
program {
  %x: f32[32,10] @m {data},{model}
  %u: f32[32,12] @m {data},{} unreduced(sum){model}
  %s: f32[] @m unreduced(sum){model}
  %0: f32[32,10] @m {data},{} = all_gather(%x) {model} dim(1) at "a.py:1"
  %1: f32[32,10] @m {data,model},{} = all_to_all(%x) {model} dim(1) to(0)
  %2: f32[32,12] @m {data},{}, %3: f32[] @m = all_reduce(%u, %s) {model}
  %4: f32[32,12] @m {data},{model} = reduce_scatter(%u) {model} dim(1)
  %5: f32[32,12] @m {data},{model} = slice(%2) {model} dim(1)
  %6: f32[32,12] @m {data},{} unreduced(sum){model} = term(%2) {model}
  return
}
)");
  const std::vector<Traffic> rows = CollectiveTraffic(p);
  ASSERT_EQ(rows.size(), 4u);
  const int64_t gathered = 16 * 10 * 4;  // of shards of 3, 3, 3 and 1 columns
  EXPECT_EQ(rows[0].code, OpCode::kAllGather);
  EXPECT_EQ(rows[0].payload_bytes, gathered);
  EXPECT_EQ(rows[0].wire_bytes, gathered * 9 / 10);
  EXPECT_EQ(rows[0].group_size, 4);
  EXPECT_EQ(rows[0].source, "a.py:1");
  EXPECT_EQ(p.grids[0]->AxesToString(rows[0].axes), "model");
  EXPECT_EQ(rows[1].wire_bytes, 4 * 9 * 4);
  EXPECT_EQ(rows[2].count, 2);
  EXPECT_EQ(rows[2].payload_bytes, 16 * 12 * 4 + 4);
  EXPECT_EQ(rows[2].wire_bytes, 2 * 16 * 12 * 4 * 3 / 4 + 2 * 4 * 3 / 4);
  EXPECT_EQ(rows[3].code, OpCode::kReduceScatter);
  EXPECT_EQ(rows[3].wire_bytes, 16 * 3 * 4 * 3);
  EXPECT_EQ(rows[3].instruction, 3);
}

TEST(TrafficTest, HalosAreWhatTheNeighboursHave) {
  const Program p = VerifiedProgram(R"(mesh @m [x=4]
program {
  %x: f32[16,5] @m {x},{}
  %h: f32[16,5] @m {x},{} window(0: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 16) = exchange(%x)
  return %h
}
)");
  const std::vector<Traffic> rows = CollectiveTraffic(p);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].payload_bytes, 6 * 5 * 4);
  EXPECT_EQ(rows[0].wire_bytes, 2 * 5 * 4);  // two rows in the middle, one at the rim
  EXPECT_EQ(rows[0].group_size, 4);
}

// By index sets: what the worst-off device needs of the value and does not hold.
TEST(TrafficTest, ExchangesFetchWhatIsNotHeld) {
  std::mt19937 rng(62);
  for (int i = 0; i < 1000; ++i) {
    Program p;
    const Dims dims = {static_cast<int64_t>(rng() % 9), static_cast<int64_t>(rng() % 9)};
    for (int g = 0; g < 2; ++g) {
      p.grids.push_back(RandomGrid(rng));
      p.grid_names.push_back(absl::StrCat("m", g));
    }
    const int to_grid = static_cast<int>(rng() % 2);
    const Sharding from = RandomSharding(rng, *p.grids[0], dims).Reduced();
    const Sharding to = RandomSharding(rng, *p.grids[to_grid], dims).Reduced();
    p.inputs.push_back({p.AddValue({{DType::kF16, dims}, 0, from, {}, ""})});
    Instruction exchange;
    exchange.code = OpCode::kExchange;
    exchange.operands = {0};
    exchange.results = {p.AddValue({{DType::kF16, dims}, to_grid, to, {}, ""})};
    p.instructions.push_back(exchange);
    ASSERT_TRUE(Verify(p).ok()) << Verify(p);
    const Layout old_layout = p.LayoutOf(0), new_layout = p.LayoutOf(1);
    int64_t worst = 0;
    for (int64_t q = 0; q < p.grids[to_grid]->num_devices(); ++q) {
      const int64_t device = p.grids[to_grid]->device_ids()[q];
      Box held;
      for (int64_t o = 0; o < p.grids[0]->num_devices(); ++o) {
        if (p.grids[0]->device_ids()[o] == device) held = old_layout.BoxAt(o);
      }
      const Box needed = new_layout.BoxAt(q);
      int64_t missing = 0;
      for (int64_t r = needed[0].begin; r < needed[0].end; ++r) {
        for (int64_t c = needed[1].begin; c < needed[1].end; ++c) {
          const Box point = {{r, r + 1}, {c, c + 1}};
          missing += held.empty() || !Contains(held, point) ? 1 : 0;
        }
      }
      worst = std::max(worst, missing);
    }
    EXPECT_EQ(CollectiveTraffic(p)[0].wire_bytes, 2 * worst) << p.ToString();
  }
}

}  // namespace
}  // namespace spmd::program
