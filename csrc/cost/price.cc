// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/price.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "csrc/util/box.h"
#include "csrc/util/dims.h"

namespace spmd::cost {
namespace {

constexpr int64_t kMaxDevices = 256;

// A dimension whose shards an exchange changes.
struct ChangedDim {
  int64_t n;
  const DimSharding& from;
  const DimSharding& to;
  int64_t from_shards, to_shards;
  int64_t from_chunk, to_chunk;
  size_t common = 0;  // number of equal leading axes

  ChangedDim(int64_t extent, const DimSharding& a, const DimSharding& b, const Grid& grid)
      : n(extent),
        from(a),
        to(b),
        from_shards(grid.size(a.axes)),
        to_shards(grid.size(b.axes)),
        from_chunk(EffectiveChunk(a, n, grid)),
        to_chunk(EffectiveChunk(b, n, grid)) {
    while (common < a.axes.size() && common < b.axes.size() && a.axes[common] == b.axes[common]) {
      ++common;
    }
  }
  absl::Span<const AxisId> Leaving() const {
    return absl::MakeConstSpan(from.axes).subspan(common);
  }
  absl::Span<const AxisId> Coming() const { return absl::MakeConstSpan(to.axes).subspan(common); }
  bool IsEven() const { return from_shards * from_chunk == n && to_shards * to_chunk == n; }
  // True if the shards along the common axes have the same boundaries before and after.
  bool KeepsCommonBoundaries(const Grid& grid) const {
    return common == 0 || from_chunk * grid.size(Leaving()) == to_chunk * grid.size(Coming());
  }
};
using ChangedDims = absl::InlinedVector<ChangedDim, 4>;

Interval ShardOf(int64_t n, int64_t shards, int64_t chunk, int64_t shard) {
  chunk = std::min(chunk, n);  // keeps the products below from overflowing
  const int64_t begin = std::min(shard * chunk, n);
  return {begin, shard == shards - 1 ? n : std::min(begin + chunk, n)};
}

// The most elements (of the changed dimensions) that any device lacks. Looks at each device along
// `axes`, the axes of these dimensions.
int64_t MostLacked(const ChangedDims& dims, const AxisList& axes, const Grid& grid) {
  const auto shard_of = [&](const AxisList& list, const absl::InlinedVector<int64_t, 8>& at) {
    int64_t shard = 0;
    for (AxisId a : list) {
      const auto i = std::find(axes.begin(), axes.end(), a) - axes.begin();
      shard = shard * grid.size(a) + at[i];
    }
    return shard;
  };
  absl::InlinedVector<int64_t, 8> at(axes.size(), 0);
  int64_t most = 0;
  while (true) {
    int64_t needed = 1, held = 1;
    for (const ChangedDim& d : dims) {
      const Interval after = ShardOf(d.n, d.to_shards, d.to_chunk, shard_of(d.to.axes, at));
      const Interval before = ShardOf(d.n, d.from_shards, d.from_chunk, shard_of(d.from.axes, at));
      needed *= after.size();
      held *= std::max<int64_t>(
          std::min(after.end, before.end) - std::max(after.begin, before.begin), 0);
    }
    most = std::max(most, needed - held);
    size_t i = axes.size();
    while (i > 0 && ++at[i - 1] == grid.size(axes[i - 1])) at[--i] = 0;
    if (i == 0) return most;
  }
}

// An estimate of MostLacked for too many devices: all of the tile or, where only boundaries move,
// the distance by which the boundary of the last shard moves.
double MostLackedOfMany(const ChangedDims& dims) {
  double needed = 1, held = 1;
  for (const ChangedDim& d : dims) {
    const int64_t size = MaxShardSize(d.n, d.to_shards, d.to_chunk);
    needed *= static_cast<double>(size);
    if (d.from.axes != d.to.axes) {
      held = 0;
    } else {
      const int64_t drift = std::abs(d.from_chunk - d.to_chunk) * (d.to_shards - 1);
      held *= static_cast<double>(std::max<int64_t>(size - drift, 0));
    }
  }
  return needed - held;
}

}  // namespace

Prices::Prices(const machine::Machine& machine, Weights weights)
    : flops(machine.flops),
      memory_bandwidth(machine.memory_bandwidth),
      memory_weight(weights.memory),
      link_bandwidth(machine.link_bandwidth),
      latency(machine.latency * weights.latency) {}

double LinkBandwidth(const Prices& prices, const Grid& grid, AxisMask axes) {
  double slowest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < grid.num_axes(); ++i) {
    const AxisId a = static_cast<AxisId>(i);
    if (axes & MaskOf(a)) slowest = std::min(slowest, grid.axis(a).bandwidth);
  }
  return axes == 0 ? prices.link_bandwidth : prices.link_bandwidth * slowest;
}

double ReductionBytes(MoveKind kind, double out, int64_t n) {
  const double others = static_cast<double>(n - 1);
  return kind == MoveKind::kAllReduce ? 2 * out * others / static_cast<double>(n) : out * others;
}

Exchange DescribeExchange(const TensorType& type, const Grid& grid, const Sharding& from,
                          const Sharding& to) {
  Exchange exchange{MoveKind::kPermute, 0, 0, 0};
  double rest = static_cast<double>(ByteSize(type.dtype));  // bytes per element of changed dims
  ChangedDims dims;
  for (int d = 0; d < type.rank(); ++d) {
    if (from.dims[d].axes == to.dims[d].axes && from.dims[d].chunk == to.dims[d].chunk) {
      rest *= static_cast<double>(MaxShardSize(to.dims[d], type.dims[d], grid));
    } else {
      dims.emplace_back(type.dims[d], from.dims[d], to.dims[d], grid);
    }
  }
  double out = 1;        // elements of the changed dims of a new tile
  double kept = 1;       // the fraction of it that the device already has, if all is even
  AxisMask changed = 0;  // axes of the changed dims
  bool even = true;
  for (const ChangedDim& d : dims) {
    const AxisMask all = MaskOf(d.from.axes) | MaskOf(d.to.axes);
    changed |= all;
    exchange.axes |= d.KeepsCommonBoundaries(grid) ? MaskOf(d.Leaving()) | MaskOf(d.Coming()) : all;
    out *= static_cast<double>(MaxShardSize(d.n, d.to_shards, d.to_chunk));
    even = even && d.IsEven();
    // Shards that are numbered by different leading axes are disjoint on some device.
    kept *= d.Leaving().empty()  ? 1
            : d.Coming().empty() ? 1 / static_cast<double>(grid.size(d.Leaving()))
                                 : 0;
    exchange.starts += d.Leaving().empty() ? 0 : 1;
    if (d.from_shards != d.to_shards || d.from_chunk != d.to_chunk) {
      exchange.kind = MoveKind::kExchange;
    }
  }
  // Along an axis that does not shard `from` every coordinate has a replica, so that nothing
  // crosses it.
  exchange.axes &= from.DimAxes();
  double lacked = out * (1 - kept);
  if (!even) {
    AxisList axes;
    for (int a = 0; a < grid.num_axes(); ++a) {
      if (changed & MaskOf(static_cast<AxisId>(a))) axes.push_back(static_cast<AxisId>(a));
    }
    exchange.is_exact = grid.size(axes) <= kMaxDevices;
    lacked = exchange.is_exact ? static_cast<double>(MostLacked(dims, axes, grid))
                               : std::max(lacked, MostLackedOfMany(dims));
  }
  exchange.bytes = rest * lacked;
  exchange.starts = std::max(exchange.starts, 1);
  return exchange;
}

double StepSeconds(MoveKind kind, double bytes, int starts, double bandwidth,
                   const Prices& prices) {
  if (kind == MoveKind::kSlice || kind == MoveKind::kTerm) return 0;
  return starts * prices.latency + bytes / bandwidth;
}

int64_t WholeBytes(double bytes) {
  constexpr double kLeastBit = 1e-3;
  return static_cast<int64_t>(bytes + kLeastBit);
}

}  // namespace spmd::cost
