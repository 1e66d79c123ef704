// SPDX-License-Identifier: Apache-2.0
// PlanMove beside a search over everything: every sharding of a small tensor, every step between
// two of them, priced here once more from boxes and devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/cost/move.h"
#include "csrc/machine/machine.h"
#include "csrc/sharding/layout.h"
#include "csrc/util/box.h"

namespace spmd::cost {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Case {
  std::vector<int64_t> mesh;
  std::vector<double> bandwidths;  // per axis of the mesh
  Dims dims;
  double latency;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "mesh " << DimsToString(Dims(c.mesh.begin(), c.mesh.end())) << " tensor "
       << DimsToString(c.dims) << " latency " << c.latency;
}

class AllMoves {
 public:
  explicit AllMoves(const Case& c) : case_(c) {
    std::vector<int64_t> ids(std::accumulate(c.mesh.begin(), c.mesh.end(), int64_t{1},
                                             [](int64_t a, int64_t b) { return a * b; }));
    std::iota(ids.begin(), ids.end(), 0);
    grid_ = Grid::Of(*Mesh::Create(ids, c.mesh, std::nullopt, c.bandwidths));
    machine_.latency = c.latency;
    machine_.link_bandwidth = 1;
    Sharding s = Sharding::Replicated(rank());
    PlaceAxes(s, 0);
  }

  int rank() const { return static_cast<int>(case_.dims.size()); }
  const Grid& grid() const { return *grid_; }
  const machine::Machine& machine() const { return machine_; }
  TensorType type() const { return {DType::kF32, case_.dims}; }
  const std::vector<Sharding>& states() const { return states_; }

  // Seconds of the cheapest way from one state to each.
  std::vector<double> CheapestFrom(size_t source) {
    std::vector<double> seconds(states_.size(), kNever);
    before_.assign(states_.size(), source);
    std::vector<bool> done(states_.size(), false);
    seconds[source] = 0;
    while (true) {
      size_t at = states_.size();
      for (size_t i = 0; i < states_.size(); ++i) {
        if (!done[i] && seconds[i] < (at == states_.size() ? kNever : seconds[at])) at = i;
      }
      if (at == states_.size()) return seconds;
      done[at] = true;
      for (size_t i = 0; i < states_.size(); ++i) {
        if (done[i] || seconds[at] + StepSeconds(at, i) >= seconds[i]) continue;
        seconds[i] = seconds[at] + StepSeconds(at, i);
        before_[i] = at;
      }
    }
  }

  // The cheapest way to `target` from where CheapestFrom was asked last, and what each step costs.
  std::string PathTo(size_t source, size_t target) {
    std::string path = states_[target].ToString(*grid_);
    for (size_t at = target; at != source; at = before_[at]) {
      path = absl::StrCat(states_[before_[at]].ToString(*grid_), " --",
                          StepSeconds(before_[at], at), "-> ", path);
    }
    return path;
  }

  // Of the cheapest single step; kNever where there is none.
  double StepSeconds(size_t a, size_t b) {
    if (step_seconds_.empty()) step_seconds_.assign(states_.size() * states_.size(), -1);
    double& known = step_seconds_[a * states_.size() + b];
    if (known < 0) known = Price(states_[a], states_[b]);
    return known;
  }
  size_t Number(const Sharding& s) const {
    return std::find(states_.begin(), states_.end(), s) - states_.begin();
  }

 private:
  // Every axis in every place: behind those that a dimension has or before them, among the
  // unreduced, nowhere.
  void PlaceAxes(Sharding& s, int axis) {
    if (axis == grid_->num_axes()) {
      ChooseChunks(s, 0);
      return;
    }
    const AxisId a = static_cast<AxisId>(axis);
    PlaceAxes(s, axis + 1);
    s.unreduced.push_back(a);
    PlaceAxes(s, axis + 1);
    s.unreduced.pop_back();
    for (DimSharding& d : s.dims) {
      for (size_t i = 0; i <= d.axes.size(); ++i) {
        d.axes.insert(d.axes.begin() + i, a);
        PlaceAxes(s, axis + 1);
        d.axes.erase(d.axes.begin() + i);
      }
    }
  }

  void ChooseChunks(Sharding& s, int dim) {
    if (dim == rank()) {
      states_.push_back(s);
      return;
    }
    ChooseChunks(s, dim + 1);
    if (s.dims[dim].axes.empty()) return;
    for (int64_t c : Chunks(case_.dims[dim], s.dims[dim].axes)) {
      s.dims[dim].chunk = c;
      ChooseChunks(s, dim + 1);
    }
    s.dims[dim].chunk = 0;
  }

  // The chunks other than the default that gathering and slicing make of default ones.
  std::set<int64_t> Chunks(int64_t n, const AxisList& axes) const {
    const auto usual = [&](int64_t shards) { return (n + shards - 1) / shards; };
    const int64_t shards = grid_->size(axes);
    std::set<int64_t> chunks;
    for (int64_t more = 1; shards * more <= grid_->num_devices(); ++more) {
      if (grid_->num_devices() % (shards * more) == 0) chunks.insert(usual(shards * more) * more);
    }
    for (int64_t fewer = 2; fewer <= shards; ++fewer) {
      if (shards % fewer != 0 || usual(shards / fewer) % fewer != 0) continue;
      const int64_t chunk = usual(shards / fewer) / fewer;
      if (chunk >= usual(shards + 1)) chunks.insert(chunk);
    }
    chunks.erase(usual(shards));
    return chunks;
  }

  int64_t Chunk(const Sharding& s, int d) const { return Layout(grid_, s, case_.dims).chunk(d); }
  double Tile(const Sharding& s) const {
    return 4.0 * static_cast<double>(Layout(grid_, s, case_.dims).MaxTileElements());
  }
  double Slowest(const AxisList& axes) const {
    double slowest = kNever;
    for (AxisId a : axes) slowest = std::min(slowest, grid_->axis(a).bandwidth);
    return slowest;
  }

  // How dimension d of `a` becomes that of `b`: nothing, axes that leave at the end, axes that come
  // at the end, anything else.
  enum class Change { kNone, kLeave, kCome, kOther };
  Change ChangeOf(const Sharding& a, const Sharding& b, int d, AxisList& run) const {
    const AxisList &have = a.dims[d].axes, &want = b.dims[d].axes;
    const int64_t from = Chunk(a, d), to = Chunk(b, d);
    if (have == want) return from == to ? Change::kNone : Change::kOther;
    const bool leave = have.size() > want.size();
    const AxisList &longer = leave ? have : want, &shorter = leave ? want : have;
    if (!std::equal(shorter.begin(), shorter.end(), longer.begin())) return Change::kOther;
    run.assign(longer.begin() + shorter.size(), longer.end());
    const int64_t parts = grid_->size(run);
    if (!shorter.empty() && (leave ? from * parts != to : to * parts != from)) {
      return Change::kOther;
    }
    return leave ? Change::kLeave : Change::kCome;
  }

  double Price(const Sharding& a, const Sharding& b) const {
    AxisList gone, come;  // terms
    std::set_difference(a.unreduced.begin(), a.unreduced.end(), b.unreduced.begin(),
                        b.unreduced.end(), std::back_inserter(gone));
    std::set_difference(b.unreduced.begin(), b.unreduced.end(), a.unreduced.begin(),
                        a.unreduced.end(), std::back_inserter(come));
    AxisList left, added;
    int leaves = 0, comes = 0, others = 0;
    for (int d = 0; d < rank(); ++d) {
      AxisList run;
      const Change change = ChangeOf(a, b, d, run);
      leaves += change == Change::kLeave;
      comes += change == Change::kCome;
      others += change == Change::kOther;
      if (change == Change::kLeave) left = run;
      if (change == Change::kCome) added = run;
    }
    const bool dims_stay = leaves + comes + others == 0;
    if (!come.empty()) return gone.empty() && dims_stay ? 0 : kNever;  // a term
    if (!gone.empty()) return Reduction(a, b, gone, added, dims_stay, leaves + others == 0);
    double best = kNever;
    if (others == 0 && leaves == 0 && comes == 1) return 0;  // a slice
    if (dims_stay) return kNever;
    const double bytes = MostLacked(a, b);
    if (others == 0 && leaves == 1 && (comes == 0 || (comes == 1 && left == added))) {
      best = machine_.latency + bytes / Slowest(left);
    }
    return std::min(best, ExchangePrice(a, b, bytes));
  }

  // Bytes that the worst-off device lacks, device by device.
  double MostLacked(const Sharding& a, const Sharding& b) const {
    const Layout from(grid_, a, case_.dims), to(grid_, b, case_.dims);
    int64_t most = 0;
    for (int64_t p = 0; p < grid_->num_devices(); ++p) {
      const Box need = to.BoxAt(p);
      most = std::max(most, NumElements(need) - NumElements(Intersect(need, from.BoxAt(p))));
    }
    return 4.0 * static_cast<double>(most);
  }

  double Reduction(const Sharding& a, const Sharding& b, const AxisList& gone,
                   const AxisList& added, bool dims_stay, bool only_come) const {
    const double n = static_cast<double>(grid_->size(gone));
    if (dims_stay) return machine_.latency + 2 * Tile(b) * (n - 1) / n / Slowest(gone);
    AxisList sorted = added;
    std::sort(sorted.begin(), sorted.end());
    int changed = 0;
    for (int d = 0; d < rank(); ++d) changed += a.dims[d].axes != b.dims[d].axes;
    if (!only_come || changed != 1 || sorted != gone) return kNever;
    return machine_.latency + Tile(b) * (n - 1) / Slowest(gone);
  }

  // Axes along which copies were are not crossed. One start per dimension that axes leave.
  double ExchangePrice(const Sharding& a, const Sharding& b, double bytes) const {
    AxisList crossed;
    int starts = 0;
    for (int d = 0; d < rank(); ++d) {
      AxisList x = a.dims[d].axes, y = b.dims[d].axes, common;
      if (x == y && Chunk(a, d) == Chunk(b, d)) continue;
      while (!x.empty() && !y.empty() && x[0] == y[0]) {
        common.push_back(x[0]);
        x.erase(x.begin());
        y.erase(y.begin());
      }
      const bool aligned =
          common.empty() || Chunk(a, d) * grid_->size(x) == Chunk(b, d) * grid_->size(y);
      for (const AxisList& list : {x, y, aligned ? AxisList() : common}) {
        for (AxisId axis : list) {
          if (a.DimAxes() & MaskOf(axis)) crossed.push_back(axis);
        }
      }
      starts += !x.empty();
    }
    return machine_.latency * std::max(starts, 1) + bytes / Slowest(crossed);
  }

  Case case_;
  GridPtr grid_;
  machine::Machine machine_;
  std::vector<Sharding> states_;
  std::vector<double> step_seconds_;
  std::vector<size_t> before_;
};

class CheapestMove : public ::testing::TestWithParam<Case> {};

TEST_P(CheapestMove, NoOtherStepsAreCheaper) {
  AllMoves all(GetParam());
  std::mt19937 rng(11);
  constexpr size_t kSources = 40, kTargets = 60;
  std::vector<size_t> numbers(all.states().size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  std::vector<size_t> sources, targets;
  std::sample(numbers.begin(), numbers.end(), std::back_inserter(sources), kSources, rng);
  for (size_t source : sources) {
    const Sharding& from = all.states()[source];
    const std::vector<double> cheapest = all.CheapestFrom(source);
    targets.clear();
    std::sample(numbers.begin(), numbers.end(), std::back_inserter(targets), kTargets, rng);
    for (size_t target : targets) {
      const Sharding& to = all.states()[target];
      SCOPED_TRACE(from.ToString(all.grid()) + " -> " + to.ToString(all.grid()));
      const MovePlan plan = PlanMove(all.type(), all.grid(), from, to, all.machine());
      double seconds = 0;
      size_t at = source;
      for (const MoveStep& step : plan.steps) {
        const size_t next = all.Number(step.result);
        ASSERT_LT(next, all.states().size()) << step.result.ToString(all.grid());
        ASSERT_LE(all.StepSeconds(at, next), step.seconds + 1e-6)
            << "to " << step.result.ToString(all.grid());
        seconds += step.seconds;
        at = next;
      }
      EXPECT_EQ(at, target);
      EXPECT_NEAR(plan.seconds, seconds, 1e-6);
      EXPECT_NEAR(plan.seconds, cheapest[target], 1e-6 * (1 + cheapest[target]))
          << all.PathTo(source, target);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Even, CheapestMove,
    ::testing::Values(Case{{2, 2}, {1, 1}, {4}, 0}, Case{{2, 2}, {1, 1}, {4, 4}, 1},
                      Case{{2, 2, 2}, {1, 1, 1}, {8}, 0}, Case{{2, 2, 2}, {1, 1, 1}, {8, 8}, 0},
                      Case{{2, 2, 2}, {1, 1, 1}, {8, 8}, 20},
                      Case{{2, 2, 2}, {1, 1, 1}, {8, 8, 8}, 100},
                      Case{{3, 2, 2}, {1, 1, 1}, {12, 12}, 0}, Case{{2, 3}, {1, 1}, {6, 6, 6}, 10}),
    [](const auto& info) { return absl::StrCat("Case", info.index); });
INSTANTIATE_TEST_SUITE_P(
    Uneven, CheapestMove,
    ::testing::Values(Case{{2, 2}, {1, 1}, {5}, 0}, Case{{2, 3}, {1, 1}, {7}, 1},
                      Case{{2, 2}, {1, 1}, {5, 3}, 1}, Case{{2, 2, 2}, {1, 1, 1}, {5, 6}, 2},
                      Case{{2, 2, 2}, {1, 1, 1}, {9}, 0}, Case{{2, 2, 2}, {1, 1, 1}, {5, 7}, 0},
                      Case{{2, 3}, {1, 1}, {5, 7, 2}, 3}),
    [](const auto& info) { return absl::StrCat("Case", info.index); });
INSTANTIATE_TEST_SUITE_P(SlowAxes, CheapestMove,
                         ::testing::Values(Case{{2, 2}, {0.25, 1}, {4, 4}, 0},
                                           Case{{2, 2, 2}, {0.1, 1, 1}, {8, 8}, 1},
                                           Case{{2, 2, 2}, {1, 0.1, 0.5}, {8, 8}, 0},
                                           Case{{2, 3}, {0.1, 1}, {6, 6, 6}, 5}),
                         [](const auto& info) { return absl::StrCat("Case", info.index); });

}  // namespace
}  // namespace spmd::cost
