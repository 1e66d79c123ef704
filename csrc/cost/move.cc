// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/move.h"

#include <algorithm>
#include <cstdlib>

namespace spmd::cost {
namespace {

bool IsPrefix(const AxisList& prefix, const AxisList& list) {
  return prefix.size() <= list.size() && std::equal(prefix.begin(), prefix.end(), list.begin());
}

AxisList Concat(const AxisList& a, absl::Span<const AxisId> b) {
  AxisList result = a;
  result.insert(result.end(), b.begin(), b.end());
  return result;
}

// The planner's state: the sharding reached so far and the steps that led there.
class Planner {
 public:
  Planner(const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to,
          const machine::Machine& machine)
      : type_(type), grid_(grid), to_(to), machine_(machine), current_(from) {}

  MovePlan Run() {
    Slices();
    Reduce();
    const Sharding reduced = current_;
    const size_t reduce_steps = plan_.steps.size();
    const bool composed = MoveDims();
    // One exchange instead, if composing failed or costs clearly more.
    if (!SameDims(reduced, to_)) {
      Sharding target = to_;
      target.unreduced = current_.unreduced;
      target.reduce_kind = current_.reduce_kind;
      const int64_t bytes = ExchangeBytes(reduced, target);
      int64_t composed_bytes = 0;
      for (size_t i = reduce_steps; i < plan_.steps.size(); ++i) {
        composed_bytes += plan_.steps[i].wire_bytes;
      }
      if (!composed || bytes * 101 < composed_bytes * 100) {
        plan_.steps.resize(reduce_steps, MoveStep{});
        current_ = target;
        Push(MoveKind::kExchange, {}, -1, -1, bytes);
      }
    }
    Terms();
    for (const MoveStep& step : plan_.steps) {
      plan_.wire_bytes += step.wire_bytes;
      if (step.kind != MoveKind::kSlice && step.kind != MoveKind::kTerm) {
        plan_.seconds += machine_.latency + step.wire_bytes / machine_.link_bandwidth;
      }
    }
    return std::move(plan_);
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

  void Push(MoveKind kind, AxisList axes, int dim, int to_dim, int64_t wire_bytes) {
    plan_.steps.push_back({kind, std::move(axes), dim, to_dim, current_, wire_bytes});
  }

  int64_t Tile() const { return TileBytes(type_, current_, grid_); }

  // Dimension d can take `run` next towards the target without moving a boundary between shards.
  // Returns the chunk after it, or 0 when it cannot.
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

  // The next axes that dimension d still lacks, as long as all are in `allowed`.
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
      Push(MoveKind::kSlice, run, d, -1, 0);
    }
  }

  void Reduce() {
    // Terms of one kind are no terms of another: they are reduced first.
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
      Push(MoveKind::kReduceScatter, run, d, -1, Tile() * (grid_.size(run) - 1));
      Slices();
    }
    AxisList rest;
    for (AxisId a : current_.unreduced) {
      if (leaving & MaskOf(a)) rest.push_back(a);
    }
    if (rest.empty()) return;
    DropUnreduced(MaskOf(rest));
    const int64_t n = grid_.size(rest);
    Push(MoveKind::kAllReduce, rest, -1, -1, 2 * Tile() * (n - 1) / n);
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

  // All-to-alls where an axis changes dimension, gathers where it leaves, slices where it comes.
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

  // The axes of dimension d that are not where the target has them.
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
        RemoveMinor(d, run);
        SetDim(e, Concat(current_.dims[e].axes, run), chunk);
        const int64_t n = grid_.size(run);
        Push(MoveKind::kAllToAll, run, d, e, Tile() * (n - 1) / n);
        return true;
      }
    }
    return false;
  }

  bool TryGather(int d) {
    const AxisList surplus = Surplus(d);
    if (surplus.empty()) return false;
    RemoveMinor(d, surplus);
    const int64_t n = grid_.size(surplus);
    Push(MoveKind::kAllGather, surplus, d, -1, Tile() * (n - 1) / n);
    return true;
  }

  void RemoveMinor(int d, const AxisList& run) {
    const int64_t chunk = Chunk(current_, d) * grid_.size(run);
    AxisList axes = current_.dims[d].axes;
    axes.erase(axes.end() - run.size(), axes.end());
    SetDim(d, std::move(axes), chunk);
  }

  // What the largest destination tile holds, less what its device had where only boundaries move.
  int64_t ExchangeBytes(const Sharding& from, const Sharding& to) const {
    const int64_t out = TileBytes(type_, to, grid_);
    double had = 1;  // of the tile
    for (int d = 0; d < from.rank(); ++d) {
      if (from.dims[d].axes != to.dims[d].axes) return out;
      const int64_t size = MaxShardSize(to.dims[d], type_.dims[d], grid_);
      if (size == 0) return 0;
      had *= 1 - static_cast<double>(std::min(Drift(from, to, d), size)) / size;
    }
    return static_cast<int64_t>(out * (1 - had));
  }

  // By how many indices the boundaries of the last shards differ: they drift apart.
  int64_t Drift(const Sharding& from, const Sharding& to, int d) const {
    const int64_t last = grid_.size(to.dims[d].axes) - 1;
    return std::abs(Chunk(from, d) - Chunk(to, d)) * last;
  }

  void Terms() {
    AxisList coming;
    for (AxisId a : to_.unreduced) {
      if (!(current_.UnreducedAxes() & MaskOf(a))) coming.push_back(a);
    }
    if (coming.empty()) return;
    current_.unreduced = to_.unreduced;
    current_.reduce_kind = to_.reduce_kind;
    Push(MoveKind::kTerm, coming, -1, -1, 0);
  }

  const TensorType& type_;
  const Grid& grid_;
  const Sharding& to_;
  const machine::Machine& machine_;
  Sharding current_;
  MovePlan plan_;
};

}  // namespace

int64_t EffectiveChunk(const DimSharding& dim, int64_t n, const Grid& grid) {
  if (dim.axes.empty()) return n;
  return dim.chunk != 0 ? dim.chunk : CeilDiv(n, grid.size(dim.axes));
}

int64_t MaxShardSize(const DimSharding& dim, int64_t n, const Grid& grid) {
  const int64_t chunk = EffectiveChunk(dim, n, grid);
  return std::max(std::min(chunk, n), n - (grid.size(dim.axes) - 1) * chunk);
}

int64_t TileBytes(const TensorType& type, const Sharding& sharding, const Grid& grid) {
  int64_t bytes = ByteSize(type.dtype);
  for (int d = 0; d < type.rank(); ++d) {
    bytes *= MaxShardSize(sharding.dims[d], type.dims[d], grid);
  }
  return bytes;
}

void NormalizeChunk(DimSharding& dim, int64_t n, const Grid& grid) {
  if (dim.axes.empty() || dim.chunk == CeilDiv(n, grid.size(dim.axes))) dim.chunk = 0;
}

MovePlan PlanMove(const TensorType& type, const Grid& grid, const Sharding& from,
                  const Sharding& to, const machine::Machine& machine) {
  Sharding source = from.Closed();
  Sharding target = to.Closed();
  for (int d = 0; d < type.rank(); ++d) {
    NormalizeChunk(source.dims[d], type.dims[d], grid);
    NormalizeChunk(target.dims[d], type.dims[d], grid);
  }
  if (source == target) return {};
  return Planner(type, grid, source, target, machine).Run();
}

}  // namespace spmd::cost
