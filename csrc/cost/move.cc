// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/move.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/cost/search.h"
#include "csrc/util/status.h"

namespace spmd::cost {
namespace {

// Relative difference up to which prices count as equal.
constexpr double kNothing = 1e-9;

bool IsPrefix(const AxisList& prefix, const AxisList& list) {
  return prefix.size() <= list.size() && std::equal(prefix.begin(), prefix.end(), list.begin());
}

AxisList Concat(const AxisList& a, absl::Span<const AxisId> b) {
  AxisList result = a;
  result.insert(result.end(), b.begin(), b.end());
  return result;
}

double Seconds(const absl::InlinedVector<MoveStep, 2>& steps, size_t first = 0) {
  double seconds = 0;
  for (size_t i = first; i < steps.size(); ++i) seconds += steps[i].seconds;
  return seconds;
}

// The usual plan: the sharding reached so far and the steps that led to it. It ends at `to`, except
// for unreduced axes that `from` lacks.
class UsualPlan {
 public:
  UsualPlan(const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to,
            const Prices& prices)
      : type_(type), grid_(grid), to_(to), prices_(prices), current_(from) {}

  absl::InlinedVector<MoveStep, 2> Run() {
    Slices();
    Reduce();
    const Sharding reduced = current_;
    const size_t reduce_steps = steps_.size();
    const bool composed = MoveDims();
    if (!SameDims(reduced, to_)) ExchangeInstead(reduced, reduce_steps, composed);
    return std::move(steps_);
  }

 private:
  static bool SameDims(const Sharding& a, const Sharding& b) {
    for (int d = 0; d < a.rank(); ++d) {
      if (a.dims[d].axes != b.dims[d].axes || a.dims[d].chunk != b.dims[d].chunk) return false;
    }
    return true;
  }

  int64_t Chunk(const Sharding& s, int d) const {
    return EffectiveChunk(s.dims[d], type_.dims[d], grid_);
  }

  // Appends a step from `before` to the current sharding.
  void Push(const Sharding& before, MoveKind kind, AxisList axes, int dim, int to_dim = -1) {
    double bytes = 0, seconds = 0;
    if (kind != MoveKind::kSlice) {
      bytes = kind == MoveKind::kAllGather || kind == MoveKind::kAllToAll
                  ? DescribeExchange(type_, grid_, before, current_).bytes
                  : ReductionBytes(kind, static_cast<double>(TileBytes(type_, current_, grid_)),
                                   grid_.size(axes));
      seconds = StepSeconds(kind, bytes, 1, LinkBandwidth(prices_, grid_, MaskOf(axes)), prices_);
    }
    steps_.push_back({kind, std::move(axes), dim, to_dim, current_, WholeBytes(bytes), seconds});
  }

  // Replaces the steps after the first `kept` by one exchange if composing them failed or costs
  // more.
  void ExchangeInstead(const Sharding& reduced, size_t kept, bool composed) {
    Sharding target = to_;
    target.unreduced = reduced.unreduced;
    target.reduce_kind = reduced.reduce_kind;
    const Exchange e = DescribeExchange(type_, grid_, reduced, target);
    const double seconds =
        StepSeconds(e.kind, e.bytes, e.starts, LinkBandwidth(prices_, grid_, e.axes), prices_);
    if (composed && seconds >= Seconds(steps_, kept) * (1 - kNothing)) return;
    steps_.resize(kept, MoveStep{});
    steps_.push_back({e.kind, {}, -1, -1, std::move(target), WholeBytes(e.bytes), seconds});
  }

  // The chunk of dimension d after the axes `run` are appended to it, or 0 if that would move a
  // boundary between shards or is not towards the target.
  int64_t ChunkAfterAppending(int d, const AxisList& run) const {
    const AxisList appended = Concat(current_.dims[d].axes, run);
    if (!IsPrefix(appended, to_.dims[d].axes)) return 0;
    const AxisList rest(to_.dims[d].axes.begin() + appended.size(), to_.dims[d].axes.end());
    const int64_t chunk = Chunk(to_, d) * grid_.size(rest);
    if (!current_.dims[d].axes.empty() && Chunk(current_, d) != chunk * grid_.size(run)) return 0;
    return chunk;
  }

  void SetDim(int d, AxisList axes, int64_t chunk) {
    current_.dims[d].axes = std::move(axes);
    current_.dims[d].chunk = current_.dims[d].axes.empty() ? 0 : chunk;
    NormalizeChunk(current_.dims[d], type_.dims[d], grid_);
  }

  // The next axes that the target has on dimension d and that it still lacks, up to the first one
  // that is not in `allowed`.
  AxisList NextRun(int d, AxisMask allowed) const {
    AxisList run;
    if (!IsPrefix(current_.dims[d].axes, to_.dims[d].axes)) return run;
    for (size_t i = current_.dims[d].axes.size(); i < to_.dims[d].axes.size(); ++i) {
      if (!(MaskOf(to_.dims[d].axes[i]) & allowed)) break;
      run.push_back(to_.dims[d].axes[i]);
    }
    return run;
  }

  void Slices() {
    for (int d = 0; d < current_.rank(); ++d) {
      const AxisList run = NextRun(d, ~current_.UsedAxes());
      if (run.empty()) continue;
      const int64_t chunk = ChunkAfterAppending(d, run);
      if (chunk == 0) continue;
      SetDim(d, Concat(current_.dims[d].axes, run), chunk);
      Push(current_, MoveKind::kSlice, run, d);
    }
  }

  void Reduce() {
    // Partial results of one kind of reduction cannot stand for another kind's, so they are all
    // reduced.
    const bool same_kind = current_.reduce_kind == to_.reduce_kind;
    const AxisMask leaving =
        current_.UnreducedAxes() & ~(same_kind ? to_.UnreducedAxes() : AxisMask{0});
    if (leaving == 0) return;
    for (int d = 0; d < current_.rank(); ++d) {
      const AxisList run = NextRun(d, leaving & current_.UnreducedAxes());
      if (run.empty()) continue;
      const int64_t chunk = ChunkAfterAppending(d, run);
      if (chunk == 0) continue;
      DropUnreduced(MaskOf(run));
      SetDim(d, Concat(current_.dims[d].axes, run), chunk);
      Push(current_, MoveKind::kReduceScatter, run, d);
      Slices();
    }
    AxisList rest;
    for (AxisId a : current_.unreduced) {
      if (leaving & MaskOf(a)) rest.push_back(a);
    }
    if (rest.empty()) return;
    DropUnreduced(MaskOf(rest));
    Push(current_, MoveKind::kAllReduce, rest, -1);
    Slices();
  }

  void DropUnreduced(AxisMask axes) {
    AxisList kept;
    for (AxisId a : current_.unreduced) {
      if (!(axes & MaskOf(a))) kept.push_back(a);
    }
    current_.unreduced = kept;
    if (kept.empty()) current_.reduce_kind = ReduceKind::kSum;
  }

  // Adds all-to-alls where an axis changes dimension, all-gathers where it leaves, slices where it
  // is added. Returns false if these steps do not reach the target.
  bool MoveDims() {
    for (int round = 0; round < 2 * current_.rank() + 2 && !SameDims(current_, to_); ++round) {
      bool changed = false;
      for (int d = 0; d < current_.rank() && !changed; ++d) changed = TryAllToAll(d);
      for (int d = 0; d < current_.rank() && !changed; ++d) changed = TryGather(d);
      Slices();
      if (!changed && !SameDims(current_, to_)) return false;
    }
    return SameDims(current_, to_);
  }

  // The axes of dimension d behind the prefix that it shares with the target.
  AxisList Surplus(int d) const {
    const AxisList& have = current_.dims[d].axes;
    const AxisList& want = to_.dims[d].axes;
    size_t common = 0;
    while (common < have.size() && common < want.size() && have[common] == want[common]) ++common;
    return AxisList(have.begin() + common, have.end());
  }

  bool TryAllToAll(int d) {
    const AxisList surplus = Surplus(d);
    for (size_t skip = 0; skip < surplus.size(); ++skip) {
      const AxisList run(surplus.begin() + skip, surplus.end());
      for (int e = 0; e < current_.rank(); ++e) {
        if (e == d) continue;
        const int64_t chunk = ChunkAfterAppending(e, run);
        if (chunk == 0) continue;
        const Sharding before = current_;
        RemoveMinor(d, run);
        SetDim(e, Concat(current_.dims[e].axes, run), chunk);
        Push(before, MoveKind::kAllToAll, run, d, e);
        return true;
      }
    }
    return false;
  }

  bool TryGather(int d) {
    const AxisList surplus = Surplus(d);
    if (surplus.empty()) return false;
    const Sharding before = current_;
    RemoveMinor(d, surplus);
    Push(before, MoveKind::kAllGather, surplus, d);
    return true;
  }

  void RemoveMinor(int d, const AxisList& run) {
    const int64_t chunk = Chunk(current_, d) * grid_.size(run);
    AxisList axes = current_.dims[d].axes;
    axes.erase(axes.end() - run.size(), axes.end());
    SetDim(d, std::move(axes), chunk);
  }

  const TensorType& type_;
  const Grid& grid_;
  const Sharding& to_;
  const Prices& prices_;
  Sharding current_;
  absl::InlinedVector<MoveStep, 2> steps_;
};

// Adds a kTerm step for the unreduced axes of `to` that the steps do not produce.
void AddTerms(const Sharding& from, const Sharding& to, absl::InlinedVector<MoveStep, 2>& steps) {
  const Sharding& at = steps.empty() ? from : steps.back().result;
  AxisList coming;
  for (AxisId a : to.unreduced) {
    if (!(at.UnreducedAxes() & MaskOf(a))) coming.push_back(a);
  }
  if (!coming.empty()) steps.push_back({MoveKind::kTerm, std::move(coming), -1, -1, to});
}

}  // namespace

MovePlan PlanMove(const TensorType& type, const Grid& grid, const Sharding& from,
                  const Sharding& to, const Prices& prices) {
  const Sharding source = Normalized(from, type, grid);
  const Sharding target = Normalized(to, type, grid);
  MovePlan plan;
  if (source == target) return plan;
  plan.steps = UsualPlan(type, grid, source, target, prices).Run();
  plan.seconds = Seconds(plan.steps);
  // The search takes every axis for one that may shard the value.
  if (plan.seconds > 0 && source.manual.empty()) {
    if (auto steps =
            FindCheaperMove(type, grid, source, target, prices, plan.seconds * (1 - kNothing))) {
      plan.steps = *std::move(steps);
      plan.seconds = Seconds(plan.steps);
    }
  }
  AddTerms(source, target, plan.steps);
  SPMD_CHECK(!plan.steps.empty() && plan.steps.back().result == target, "no way from ",
             source.ToString(grid), " to ", target.ToString(grid));
  for (const MoveStep& step : plan.steps) plan.wire_bytes += step.wire_bytes;
  return plan;
}

}  // namespace spmd::cost
