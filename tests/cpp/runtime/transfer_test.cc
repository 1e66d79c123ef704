// SPDX-License-Identifier: Apache-2.0
// Moves between processes, compared with the global values and with one process.
#include "csrc/runtime/transfer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "csrc/program/terms.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/places.h"
#include "tests/cpp/runtime/job.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

TiledTensorPtr Moved(const TiledTensor& value, const Layout& layout, Peers* peers,
                     Backend& backend) {
  const int64_t dealt = backend.homes().devices_per_process;
  const Placement from = PlacementOf(value), to(layout, value.per_position, {}, dealt);
  const MovePlan plan = MovePlan::Make(from, to, backend);
  const DType held = program::HeldType(value.dtype, from.sharding());
  auto tiles = RunMovePlan(plan, value.tiles, ToScalarType(held), value.dtype, peers);
  EXPECT_TRUE(tiles.ok()) << tiles.status();
  if (!tiles.ok()) return nullptr;
  return std::make_shared<TiledTensor>(
      TiledTensor{layout, value.dtype, *std::move(tiles), value.per_position, false, dealt});
}

std::vector<GridPtr> Grids() {
  return {MakeGrid({8}, {"a"}),
          MakeGrid({2, 4}, {"a", "b"}),
          MakeGrid({2, 2, 2}, {"a", "b", "c"}),
          MakeGrid({4, 2}, {"a", "b"}, {7, 5, 3, 1, 0, 2, 4, 6}),
          MakeGrid({3}, {"a"}, {1, 4, 6}),
          MakeGrid({1}, {"a"}, {5})};
}

// Host → layout → other layout → host, where layouts and grids are random. Values of random bits
// make sums depend on their order, so that equal bits show that the order is that of the devices.
TEST(Transfer, MovesGiveTheBitsOfOneProcess) {
  const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16,      at::kLong,
                                             at::kBool,  at::kComplexDouble, at::kShort};
  for (uint32_t seed = 0; seed < 120; ++seed) {
    LayoutMaker maker(seed);
    const std::vector<GridPtr> grids = Grids();
    const std::vector<Dims> all_dims = {{10, 7}, {8, 8}, {3, 5}, {2, 9}, {0, 4}, {}, {5, 2, 6}};
    const Dims dims = all_dims[maker.Below(std::ssize(all_dims))];
    const at::ScalarType type = types[maker.Below(std::ssize(types))];
    const ReduceKind kind = type == at::kBool ? ReduceKind::kOr : ReduceKind::kSum;
    const GridPtr grid = grids[maker.Below(std::ssize(grids))];
    const bool other_grid = maker.Below(3) == 0;
    const Layout first = maker.Make(grid, dims, false);
    const Layout second = maker.Make(other_grid ? grids[maker.Below(std::ssize(grids))] : grid,
                                     dims, !other_grid, kind);
    const Layout third = maker.Make(second.grid(), dims, false);
    at::manual_seed(seed);
    at::Tensor host = at::randn(Sizes(dims), at::kDouble).mul(100).to(type);

    const auto cpu = *MakeBackend("cpu", kJobDevices);
    TiledTensorPtr alone = Upload(host, first, *cpu);
    alone = Moved(*Moved(*alone, second, nullptr, *cpu), third, nullptr, *cpu);
    EXPECT_TRUE(at::equal(*Download(*alone), host)) << seed;
    for (const int size : {1, 2, 4, 8}) {
      LocalJob job(size);
      RunJob(job, [&](Peers& peers, Backend& backend) {
        TiledTensorPtr value = Upload(host, first, backend);
        for (const Layout& layout : {second, third}) {
          value = Moved(*value, layout, &peers, backend);
          ASSERT_NE(value, nullptr);
        }
        const auto read = Download(*value, &peers);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_TRUE(at::equal(*read, host)) << seed << " in " << size << ": " << first.ToString()
                                            << " " << second.ToString() << " " << third.ToString();
      });
    }
  }
}

// The terms of a sum are random. With exact sums, the bits are those of one process; otherwise
// those are the same in all processes, and integers and half types, which are rounded once, agree
// as well as rounding permits.
TEST(Transfer, SumsAreInAFixedOrder) {
  for (const bool exact : {true, false}) {
    for (const at::ScalarType type :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kDouble}) {
      const GridPtr grid = MakeGrid({2, 4}, {"a", "b"});
      for (const char* const axes :
           {"{} unreduced(sum){a,b}", "{a} unreduced(sum){b}", "{b} unreduced(sum){a}"}) {
        const Layout from(grid, *Sharding::Parse(axes, *grid), {1001});
        for (const char* const wanted : {"{}", "{a,b}", "{b}"}) {
          const Layout to(grid, *Sharding::Parse(wanted, *grid), {1001});
          const DType dtype = FromScalarType(type);
          const at::ScalarType held = ToScalarType(program::HeldType(dtype, from.sharding()));
          at::manual_seed(3);
          std::vector<at::Tensor> terms;  // by position
          for (int64_t t = 0; t < from.num_tiles(); ++t) {
            const Dims dims = BoxDims(from.BoxOfTile(t));
            terms.push_back(at::randn(Sizes(dims), at::kDouble).mul(50).to(held));
          }
          const auto cpu = *MakeBackend("cpu", kJobDevices);
          const TiledTensor alone{from, dtype, terms};
          const at::Tensor sum = *Download(*Moved(alone, to, nullptr, *cpu));
          for (const int size : {2, 4, 8}) {
            LocalJob job(size);
            std::vector<at::Tensor> got(size);
            const auto f = [&](Peers& peers, Backend& backend) {
              const int64_t dealt = backend.homes().devices_per_process;
              const Placement held_here(from, false, {}, dealt);
              TiledTensor value{from, dtype, {}, false, false, dealt};
              for (int64_t i = 0; i < held_here.count(); ++i) {
                const bool here = backend.homes().IsHere(held_here.HomeOf(i));
                value.tiles.push_back(here ? terms[held_here.TileOf(i)].clone() : at::Tensor());
              }
              const TiledTensorPtr moved = Moved(value, to, &peers, backend);
              ASSERT_NE(moved, nullptr);
              got[peers.rank()] = *Download(*moved, &peers);
            };
            RunJob(job, f, exact);
            for (const at::Tensor& read : got) {
              EXPECT_TRUE(at::equal(read, got[0])) << type << " " << axes << " " << wanted;
              if (exact || at::isIntegralType(type, true)) {
                EXPECT_TRUE(at::equal(read, sum)) << type << " " << axes << " " << wanted;
              }
              const double most = type == at::kBFloat16 ? 0.008 : type == at::kHalf ? 0.001 : 1e-6;
              EXPECT_TRUE(at::allclose(read.to(at::kDouble), sum.to(at::kDouble), most, 1e-4));
            }
          }
        }
      }
    }
  }
}

// Each byte travels once for each process that receives it, and only what is missing there.
TEST(Transfer, SendsWhatIsMissingOnce) {
  const GridPtr grid = MakeGrid({8}, {"a"});
  const auto elements_sent = [&](const char* a, const char* b, int size, bool exact = true) {
    const Layout from(grid, *Sharding::Parse(a, *grid), {16, 16});
    const Layout to(grid, *Sharding::Parse(b, *grid), {16, 16});
    std::vector<int64_t> sent(size);
    LocalJob job(size);
    RunJob(
        job,
        [&](Peers& peers, Backend& backend) {
          const int64_t dealt = backend.homes().devices_per_process;
          const MovePlan plan = MovePlan::Make(Placement(from, false, {}, dealt),
                                               Placement(to, false, {}, dealt), backend);
          sent[peers.rank()] = plan.transfer.num_sent(peers.rank());
          EXPECT_EQ(plan.transfer.exchanges, from.num_tiles() > 1);
        },
        exact);
    return sent;
  };
  using Counts = std::vector<int64_t>;
  // Four devices of the other process want each half; it travels once.
  EXPECT_EQ(elements_sent("{a}, {}", "{}, {}", 2), (Counts{128, 128}));
  EXPECT_EQ(elements_sent("{a}, {}", "{}, {}", 4), (Counts{192, 192, 192, 192}));
  // Half of the rows times half of the columns.
  EXPECT_EQ(elements_sent("{a}, {}", "{}, {a}", 2), (Counts{64, 64}));
  // Partial sums travel one by one, or as one of each process.
  EXPECT_EQ(elements_sent("{}, {} unreduced(sum){a}", "{}, {}", 2), (Counts{1024, 1024}));
  EXPECT_EQ(elements_sent("{}, {} unreduced(sum){a}", "{}, {}", 2, false), (Counts{256, 256}));
  EXPECT_EQ(elements_sent("{}, {} unreduced(sum){a}", "{a}, {}", 2, false), (Counts{128, 128}));
  // Every process has it all.
  EXPECT_EQ(elements_sent("{}, {}", "{a}, {}", 2), (Counts{0, 0}));
}

// A value of which each process holds the tiles of its own devices. `terms` are the tiles of all.
TiledTensor HeldHere(const Layout& layout, DType dtype, const std::vector<at::Tensor>& terms,
                     const Backend& backend) {
  const int64_t dealt = backend.homes().devices_per_process;
  const Placement held_here(layout, false, {}, dealt);
  TiledTensor value{layout, dtype, {}, false, false, dealt};
  for (int64_t i = 0; i < held_here.count(); ++i) {
    const bool here = backend.homes().IsHere(held_here.HomeOf(i));
    value.tiles.push_back(here ? terms[held_here.TileOf(i)].clone() : at::Tensor());
  }
  return value;
}

// Each process adds one part of a large sum and sends it to the others, in an exchange of its own
// or portion by portion through memory. The bits are those of the sum of the sums of each process,
// added one after another.
TEST(Transfer, LargeSumsAreAddedInParts) {
  struct Case {
    GridPtr grid;
    int size;
    std::vector<std::vector<int>> devices;  // by process that has any: the terms that it holds
  };
  const std::vector<Case> cases = {
      {MakeGrid({8}, {"a"}), 2, {{0, 1, 2, 3}, {4, 5, 6, 7}}},
      {MakeGrid({8}, {"a"}), 4, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {MakeGrid({8}, {"a"}), 8, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}},
      // Devices 1, 4 and 6: process 1 of 4 has none.
      {MakeGrid({3}, {"a"}, {1, 4, 6}), 4, {{0}, {1}, {2}}}};
  for (const Case& c : cases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kInt, at::kComplexFloat}) {
      const Dims dims = {330, 1025};  // in memory: more portions than there are places for
      const int64_t elements = NumElements(dims);
      const Layout from(c.grid, *Sharding::Parse("{}, {} unreduced(sum){a}", *c.grid), dims);
      const Layout to(c.grid, *Sharding::Parse("{}, {}", *c.grid), dims);
      const DType dtype = FromScalarType(type);
      const at::ScalarType held = ToScalarType(program::HeldType(dtype, from.sharding()));
      at::manual_seed(5);
      std::vector<at::Tensor> terms;
      for (int64_t t = 0; t < from.num_tiles(); ++t) {
        // Strides of their own do not matter.
        const at::Tensor term = at::randn({1025, 330}, at::kDouble).mul(50).to(held).t();
        terms.push_back(t % 2 == 0 ? term : term.contiguous());
      }
      at::Tensor sum;
      for (const std::vector<int>& of_process : c.devices) {
        at::Tensor own = terms[of_process[0]].clone();
        for (size_t k = 1; k < of_process.size(); ++k) own.add_(terms[of_process[k]]);
        sum = sum.defined() ? sum.add_(own) : own;
      }
      sum = sum.to(type);
      LocalJob job(c.size);
      std::vector<int64_t> sent(c.size);
      const auto f = [&](Peers& peers, Backend& backend) {
        const int64_t dealt = backend.homes().devices_per_process;
        const Placement held_here(from, false, {}, dealt), wanted(to, false, {}, dealt);
        sent[peers.rank()] =
            MovePlan::Make(held_here, wanted, backend).transfer.num_sent(peers.rank());
        const TiledTensor value = HeldHere(from, dtype, terms, backend);
        const TiledTensorPtr moved = Moved(value, to, &peers, backend);
        ASSERT_NE(moved, nullptr);
        for (int64_t i = 0; i < wanted.count(); ++i) {
          if (!backend.homes().IsHere(wanted.HomeOf(i))) continue;
          EXPECT_TRUE(at::equal(moved->tiles[i], sum)) << type << " in " << c.size;
        }
      };
      RunJob(job, f, /*exact_sums=*/false);
      RunJobInMemory(c.size, f, /*exact_sums=*/false);
      EXPECT_EQ(job.exchanges(), 2);
      // Each part but the own one is sent to its owner, and each sum of a part to all others.
      const auto owners = std::ssize(c.devices);
      EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), int64_t{0}), 2 * elements * (owners - 1));
      const auto bytes = 2 * elements * (owners - 1) * static_cast<int64_t>(c10::elementSize(held));
      EXPECT_GE(job.bytes(), bytes);
      EXPECT_LE(job.bytes(), bytes + 16 * 2 * owners * owners);  // padding
    }
  }
}

// Large sums of several types and kinds, and a small one, in one exchange. In the second run one
// process has failed: it gives zeros, and the others do not wait for it.
TEST(Transfer, SumsOfSeveralValuesShareTheirPortions) {
  const GridPtr grid = MakeGrid({4}, {"a"}, {0, 2, 4, 6});
  struct Value {
    Dims dims;
    at::ScalarType type;
    const char* kind;
  };
  const std::vector<Value> values = {{{150, 211}, at::kFloat, "sum"},
                                     {{7}, at::kFloat, "sum"},
                                     {{40000}, at::kLong, "sum"},
                                     {{201, 99}, at::kDouble, "max"},
                                     {{3, 100, 101}, at::kFloat, "sum"}};
  at::manual_seed(11);
  std::vector<std::vector<at::Tensor>> terms;
  for (const Value& value : values) {
    std::vector<at::Tensor>& of_value = terms.emplace_back();
    for (int t = 0; t < 4; ++t) {
      of_value.push_back(at::randn(Sizes(value.dims), at::kDouble).mul(50).to(value.type));
    }
  }
  for (const int size : {2, 4}) {
    for (const int failed : {-1, 1}) {
      // What each process gives, one after another.
      std::vector<at::Tensor> wanted;
      for (size_t v = 0; v < values.size(); ++v) {
        at::Tensor sum;
        for (int p = 0; p < size; ++p) {
          const bool max = std::string(values[v].kind) == "max";
          at::Tensor own = terms[v][p * 4 / size].clone();
          if (size == 2) {
            const at::Tensor& second = terms[v][2 * p + 1];
            own = max ? at::maximum(own, second) : own.add(second);
          }
          sum = !sum.defined() ? own : max ? at::maximum(sum, own) : sum.add(own);
        }
        wanted.push_back(sum);
      }
      const auto f = [&](Peers& peers, Backend& backend) {
        const int64_t dealt = backend.homes().devices_per_process;
        std::vector<MovePlan> plans;
        std::vector<std::vector<at::Tensor>> held;
        for (size_t v = 0; v < values.size(); ++v) {
          std::string none = "{}";
          for (size_t d = 1; d < values[v].dims.size(); ++d) none += ", {}";
          const auto partial =
              *Sharding::Parse(none + " unreduced(" + values[v].kind + "){a}", *grid);
          const Layout from(grid, partial, values[v].dims);
          const Layout to(grid, *Sharding::Parse(none, *grid), values[v].dims);
          plans.push_back(MovePlan::Make(Placement(from, false, {}, dealt),
                                         Placement(to, false, {}, dealt), backend));
          held.push_back(HeldHere(from, FromScalarType(values[v].type), terms[v], backend).tiles);
        }
        std::vector<TransferPart> parts;
        for (size_t v = 0; v < values.size(); ++v) {
          parts.push_back({&plans[v], held[v], values[v].type});
        }
        bool taken = false;
        const absl::Status status = RunTransfer(
            peers, parts, peers.rank() == failed,
            [&](std::vector<std::vector<at::Tensor>> slots, bool) {
              taken = true;
              for (size_t v = 0; v < values.size(); ++v) {
                if (plans[v].transfer.sums.empty()) continue;  // the small one
                if (failed >= 0) continue;                     // and its parts of the sums are zero
                EXPECT_TRUE(at::equal(slots[v].back(), wanted[v])) << v << " in " << size;
              }
            });
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(taken, peers.rank() != failed);
      };
      RunJobInMemory(size, f, /*exact_sums=*/false);
    }
  }
}

TEST(Transfer, WhatAllHoldIsReadAlone) {
  const GridPtr grid = MakeGrid({2, 4}, {"a", "b"});
  const GridPtr part = MakeGrid({4}, {"a"});
  LocalJob job(2);
  RunJob(job, [&](Peers& peers, Backend& backend) {
    const at::Tensor host = at::arange(16, at::kFloat);
    const auto held = [&](const GridPtr& g, const char* sharding) {
      const Layout layout(g, *Sharding::Parse(sharding, *g), {16});
      return IsHeldByAll(*Upload(host, layout, backend), &peers);
    };
    EXPECT_TRUE(held(grid, "{}"));
    EXPECT_TRUE(held(grid, "{b}"));  // each process has four devices along b
    EXPECT_FALSE(held(grid, "{a}"));
    EXPECT_FALSE(held(part, "{}"));  // process 1 has none of these devices
    EXPECT_TRUE(held(Grid::SingleDevice(), "{}"));
    const Layout layout(grid, *Sharding::Parse("{b}", *grid), {16});
    if (peers.rank() == 0) {
      EXPECT_TRUE(at::equal(*Download(*Upload(host, layout, backend), &peers), host));
    }
  });
  EXPECT_EQ(job.exchanges(), 0);
}

}  // namespace
}  // namespace spmd::runtime
