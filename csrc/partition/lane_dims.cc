// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_dims.h"

#include <algorithm>

namespace spmd::partition {

bool IsLane(const Lanes& lanes, int dim) {
  return std::any_of(lanes.begin(), lanes.end(), [dim](Lane lane) { return lane.dim == dim; });
}

int NumberWithout(const Lanes& lanes, int dim) {
  return dim - static_cast<int>(std::count_if(lanes.begin(), lanes.end(),
                                              [dim](Lane lane) { return lane.dim < dim; }));
}

Dims JoinedDims(const Dims& dims, const Lanes& lanes) {
  Dims joined;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (IsLane(lanes, d)) continue;
    joined.push_back(dims[d]);
    for (const Lane lane : lanes) {
      if (lane.whole == d) joined.back() *= dims[lane.dim];
    }
  }
  return joined;
}

std::optional<Sharding> JoinedSharding(const Sharding& sharding, const Dims& dims,
                                       const Lanes& lanes, const Grid& grid) {
  Sharding joined = sharding;
  joined.dims.clear();
  for (const Lane lane : lanes) {
    const DimSharding& dim = sharding.dims[lane.dim];
    if (dim.axes.empty() || grid.size(dim.axes) != dims[lane.dim] || dim.chunk > 1) {
      return std::nullopt;
    }
  }
  for (int d = 0; d < sharding.rank(); ++d) {
    if (IsLane(lanes, d)) continue;
    const DimSharding& own = sharding.dims[d];
    DimSharding& both = joined.dims.emplace_back();
    for (const Lane lane : lanes) {
      if (lane.whole != d) continue;
      const AxisList& axes = sharding.dims[lane.dim].axes;
      both.axes.insert(both.axes.end(), axes.begin(), axes.end());
    }
    if (both.axes.empty()) {
      both = {own.axes, own.chunk};
    } else if (!own.axes.empty()) {
      const int64_t shards = grid.size(own.axes);
      const bool even = dims[d] % shards == 0 && (own.chunk == 0 || own.chunk == dims[d] / shards);
      if (!even) return std::nullopt;
      both.axes.insert(both.axes.end(), own.axes.begin(), own.axes.end());
    }
  }
  return joined;
}

Sharding WithOrder(const Sharding& sharding, absl::Span<const int64_t> order) {
  Sharding ordered = sharding;
  for (size_t i = 0; i < order.size(); ++i) ordered.dims[i] = sharding.dims[order[i]];
  return ordered;
}

Lanes SplitOff(const Dims& from, const Dims& to) {
  Lanes lanes;
  size_t t = 0;
  for (const int64_t size : from) {
    if (size == 1) continue;
    Lanes parts;
    int64_t product = 1;
    while (product < size) {
      if (t == to.size()) return {};
      product *= to[t];
      if (to[t] != 1) parts.push_back({static_cast<int>(t), 0});
      ++t;
    }
    if (product != size || parts.empty()) return {};
    for (size_t k = 0; k + 1 < parts.size(); ++k) {
      lanes.push_back({parts[k].dim, parts.back().dim});
    }
  }
  for (; t < to.size(); ++t) {
    if (to[t] != 1) return {};
  }
  return lanes;
}

bool AreInPlace(const Dims& dims, const Lanes& lanes) {
  std::vector<int> before(dims.size(), -1);  // by dimension: the last one that lies before it
  for (size_t i = lanes.size(); i-- > 0;) {
    if (lanes[i].whole == Lane::kEverywhere) return false;
    int& at = before[lanes[i].whole];
    if (at < 0) at = lanes[i].whole;
    do {
      --at;
    } while (at > lanes[i].dim && dims[at] == 1);
    if (at != lanes[i].dim) return false;
  }
  return true;
}

Dims WithoutOnes(const Dims& dims) {
  Dims rest;
  for (const int64_t n : dims) {
    if (n != 1) rest.push_back(n);
  }
  return rest;
}

std::vector<int> Moved(const Dims& from, const Dims& to) {
  std::vector<int> moved(from.size(), -1);
  size_t t = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] == 1) continue;
    while (t < to.size() && to[t] == 1) ++t;
    if (t == to.size() || to[t] != from[d]) return {};
    moved[d] = static_cast<int>(t++);
  }
  while (t < to.size() && to[t] == 1) ++t;
  return t == to.size() ? moved : std::vector<int>{};
}

Sharding WithoutDims(const Sharding& sharding, const Lanes& gone) {
  Sharding rest = sharding;
  rest.dims.clear();
  for (int d = 0; d < sharding.rank(); ++d) {
    if (!IsLane(gone, d)) rest.dims.push_back(sharding.dims[d]);
  }
  return rest;
}

}  // namespace spmd::partition
