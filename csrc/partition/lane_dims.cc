// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_dims.h"

#include <algorithm>

namespace spmd::partition {

namespace {

bool WasSplit(Lane lane) { return lane.whole >= 0; }
bool IsMerged(Lane lane) { return lane.size > 0; }
int64_t SizeOf(const Dims& dims, Lane lane) { return IsMerged(lane) ? lane.size : dims[lane.dim]; }

// By lane, the axes that shard it; nullopt if a device does not have exactly one index of each.
std::optional<std::vector<AxisList>> AxesOfLanes(const Sharding& sharding, const Dims& dims,
                                                 const Lanes& lanes, const Grid& grid) {
  std::vector<AxisList> axes;
  std::vector<size_t> used(dims.size(), 0);  // by dimension: axes of the lanes so far
  for (const Lane lane : lanes) {
    const DimSharding& dim = sharding.dims[lane.dim];
    AxisList& mine = axes.emplace_back();
    size_t& next = used[lane.dim];
    while (next < dim.axes.size() && (mine.empty() || grid.size(mine) < SizeOf(dims, lane))) {
      mine.push_back(dim.axes[next++]);
    }
    if (mine.empty() || grid.size(mine) != SizeOf(dims, lane)) return std::nullopt;
  }
  for (const Lane lane : lanes) {
    const DimSharding& dim = sharding.dims[lane.dim];
    if (used[lane.dim] != dim.axes.size()) return std::nullopt;
    if (dim.chunk != 0 && dim.chunk != dims[lane.dim] / grid.size(dim.axes)) return std::nullopt;
  }
  return axes;
}

// By dimension, the size of what is no lane of it.
int64_t Rest(const Dims& dims, const Lanes& lanes, int d) {
  int64_t rest = dims[d];
  for (const Lane lane : lanes) {
    if (lane.dim == d && IsMerged(lane)) rest /= lane.size;
  }
  return rest;
}

bool HoldsMerged(const Lanes& lanes, int d) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [d](Lane lane) { return lane.dim == d && IsMerged(lane); });
}

// What remains of the sharding of dimension `d` without lanes that are merged into it.
DimSharding RestSharding(const Sharding& sharding, const Lanes& lanes, int d) {
  return HoldsMerged(lanes, d) ? DimSharding{}
                               : DimSharding{sharding.dims[d].axes, sharding.dims[d].chunk};
}

// Dimensions of both sides of a reshape that have the same elements in the same order. Dimensions
// of size 1 are in none.
struct Group {
  std::vector<int> from, to;
};

// Empty if the sizes do not correspond.
std::vector<Group> GroupsOf(const Dims& from, const Dims& to) {
  std::vector<Group> groups;
  size_t f = 0, t = 0;
  const auto next = [](const Dims& dims, size_t& d) {
    while (d < dims.size() && dims[d] == 1) ++d;
    return d < dims.size();
  };
  while (next(from, f)) {
    Group& group = groups.emplace_back();
    int64_t left = 1, right = 1;
    do {
      if (left <= right) {
        if (!next(from, f) || from[f] == 0) return {};
        group.from.push_back(static_cast<int>(f));
        left *= from[f++];
      } else {
        if (!next(to, t)) return {};
        group.to.push_back(static_cast<int>(t));
        right *= to[t++];
      }
    } while (left != right);
  }
  return next(to, t) ? std::vector<Group>{} : groups;
}

}  // namespace

bool IsLane(const Lanes& lanes, int dim) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [dim](Lane lane) { return lane.dim == dim && !IsMerged(lane); });
}

bool AreSplit(const Lanes& lanes) { return std::all_of(lanes.begin(), lanes.end(), WasSplit); }

bool HasSums(const Lanes& lanes) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [](Lane lane) { return lane.whole == Lane::kSummed; });
}

bool AreSame(const Lanes& a, const Lanes& b) {
  if (a.size() != b.size()) return false;
  std::vector<size_t> at;  // by lane of `a`, its place in `b`
  for (const Lane& lane : a) {
    at.push_back(std::find(b.begin(), b.end(), lane) - b.begin());
    if (at.back() == b.size()) return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const bool ordered = a[i].dim == a[k].dim || (WasSplit(a[i]) && a[i].whole == a[k].whole);
      if (ordered && at[k] >= at[i]) return false;
    }
  }
  return true;
}

int NumberWithout(const Lanes& lanes, int dim) {
  return dim - static_cast<int>(std::count_if(lanes.begin(), lanes.end(), [dim](Lane lane) {
           return lane.dim < dim && !IsMerged(lane);
         }));
}

Dims JoinedDims(const Dims& dims, const Lanes& lanes) {
  Dims joined;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (IsLane(lanes, d)) continue;
    joined.push_back(Rest(dims, lanes, d));
    for (const Lane lane : lanes) {
      if (lane.whole == d) joined.back() *= SizeOf(dims, lane);
    }
  }
  return joined;
}

std::optional<Sharding> JoinedSharding(const Sharding& sharding, const Dims& dims,
                                       const Lanes& lanes, const Grid& grid) {
  const std::optional<std::vector<AxisList>> axes = AxesOfLanes(sharding, dims, lanes, grid);
  if (!axes) return std::nullopt;
  Sharding joined = sharding;
  joined.dims.clear();
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].whole != Lane::kSummed) continue;
    if (joined.IsUnreduced() && joined.reduce_kind != lanes[i].reduce) return std::nullopt;
    joined.reduce_kind = lanes[i].reduce;
    joined.unreduced.insert(joined.unreduced.end(), (*axes)[i].begin(), (*axes)[i].end());
  }
  std::sort(joined.unreduced.begin(), joined.unreduced.end());
  for (int d = 0; d < sharding.rank(); ++d) {
    if (IsLane(lanes, d)) continue;
    const DimSharding own = RestSharding(sharding, lanes, d);
    DimSharding& both = joined.dims.emplace_back();
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].whole != d) continue;
      both.axes.insert(both.axes.end(), (*axes)[i].begin(), (*axes)[i].end());
    }
    if (both.axes.empty()) {
      both = own;
    } else if (!own.axes.empty()) {
      const int64_t shards = grid.size(own.axes);
      const bool even = dims[d] % shards == 0 && (own.chunk == 0 || own.chunk == dims[d] / shards);
      if (!even) return std::nullopt;
      both.axes.insert(both.axes.end(), own.axes.begin(), own.axes.end());
    }
  }
  return joined;
}

Apart TakeApart(const Sharding& sharding, const Dims& dims, const Lanes& lanes, const Grid& grid) {
  const std::vector<AxisList> axes = *AxesOfLanes(sharding, dims, lanes, grid);
  Apart apart;
  apart.before = sharding;
  apart.before.dims.clear();
  const auto add = [&](int64_t size, DimSharding dim) {
    apart.sizes.push_back(size);
    apart.before.dims.push_back(std::move(dim));
    return static_cast<int64_t>(apart.sizes.size()) - 1;
  };
  std::vector<int64_t> of_lane(lanes.size()), of_dim(dims.size());
  for (int d = 0; d < sharding.rank(); ++d) {
    if (IsLane(lanes, d)) continue;
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].whole == d) of_lane[i] = add(SizeOf(dims, lanes[i]), DimSharding{axes[i]});
    }
    of_dim[d] = add(Rest(dims, lanes, d), RestSharding(sharding, lanes, d));
  }
  for (int d = 0; d < sharding.rank(); ++d) {
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].dim == d) apart.order.push_back(of_lane[i]);
    }
    if (!IsLane(lanes, d)) apart.order.push_back(of_dim[d]);
  }
  apart.after = WithOrder(apart.before, apart.order);
  return apart;
}

Apart Regroup(const Sharding& sharding, const Dims& dims, const Lanes& from, const Lanes& to,
              const Grid& grid) {
  const Apart now = TakeApart(sharding, dims, from, grid);
  const Apart then = TakeApart(sharding, dims, to, grid);
  const size_t count = now.order.size();
  std::vector<int64_t> order(count);  // of the parts: by place in the result, that in the operand
  for (size_t i = 0; i < count; ++i) order[then.order[i]] = now.order[i];
  // By part, the dimension that it is a part of without lanes.
  const auto dims_of = [&](const Lanes& lanes) {
    std::vector<int> of;
    for (int d = 0; d < sharding.rank(); ++d) {
      if (IsLane(lanes, d)) continue;
      const auto parts =
          std::count_if(lanes.begin(), lanes.end(), [d](Lane lane) { return lane.whole == d; });
      of.insert(of.end(), parts + 1, d);
    }
    return of;
  };
  const std::vector<int> before = dims_of(from), after = dims_of(to);
  std::vector<bool> joins(count, false);  // by part of the operand: it stays with the one before
  for (size_t i = 1; i < count; ++i) {
    const int64_t part = order[i];
    joins[part] =
        part == order[i - 1] + 1 && before[part] == before[part - 1] && after[i] == after[i - 1];
  }
  Apart apart;
  apart.before = now.before;
  apart.before.dims.clear();
  std::vector<int64_t> number(count);
  for (size_t part = 0; part < count; ++part) {
    const DimSharding& own = now.before.dims[part];
    if (joins[part]) {
      DimSharding& all = apart.before.dims.back();
      all.axes.insert(all.axes.end(), own.axes.begin(), own.axes.end());
      apart.sizes.back() *= now.sizes[part];
    } else {
      apart.sizes.push_back(now.sizes[part]);
      apart.before.dims.push_back(own);
    }
    number[part] = static_cast<int64_t>(apart.sizes.size()) - 1;
  }
  for (const int64_t part : order) {
    if (!joins[part]) apart.order.push_back(number[part]);
  }
  apart.after = WithOrder(apart.before, apart.order);
  return apart;
}

Sharding WithOrder(const Sharding& sharding, absl::Span<const int64_t> order) {
  Sharding ordered = sharding;
  for (size_t i = 0; i < order.size(); ++i) ordered.dims[i] = sharding.dims[order[i]];
  return ordered;
}

Lanes SplitOff(const Dims& from, const Dims& to, const Sharding& sharding, const Grid& grid) {
  Lanes lanes;
  for (const Group& group : GroupsOf(from, to)) {
    const auto has_one_index = [&](int d) {
      const AxisList& axes = sharding.dims[d].axes;
      return !axes.empty() && grid.size(axes) == to[d];
    };
    size_t whole = 0;
    while (whole + 1 < group.to.size() && has_one_index(group.to[whole])) ++whole;
    for (size_t k = 0; k < whole; ++k) lanes.push_back({group.to[k], group.to[whole]});
    // A dimension of size 1 that is inserted is what a device has of the whole besides its lane.
    const auto is_one = [](const Dims& dims, int d) {
      return d < static_cast<int>(dims.size()) && dims[d] == 1;
    };
    const int last = group.to[whole];
    if (whole + 1 == group.to.size() && has_one_index(last) && is_one(to, last + 1) &&
        !is_one(from, group.from.back() + 1)) {
      for (size_t k = 0; k < whole; ++k) lanes[lanes.size() - whole + k].whole = last + 1;
      lanes.push_back({last, last + 1});
    }
  }
  return lanes;
}

bool AreInPlace(const Dims& dims, const Lanes& lanes) {
  std::vector<int> before(dims.size(), -1);  // by dimension: the last one that lies before it
  for (size_t i = lanes.size(); i-- > 0;) {
    if (!WasSplit(lanes[i]) || IsMerged(lanes[i])) return false;
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

Sharding WithOnesOf(const Sharding& sharding, const Dims& from, const Dims& to) {
  Sharding other = sharding;
  other.dims.clear();
  size_t next = 0;
  for (const int64_t n : to) {
    while (n != 1 && from[next] == 1) ++next;
    other.dims.push_back(n == 1 ? DimSharding{} : sharding.dims[next++]);
  }
  return other;
}

std::optional<Lanes> OfNextDims(const Lanes& lanes, const Dims& dims) {
  Lanes next = lanes;
  const int rank = static_cast<int>(dims.size());
  for (Lane& lane : next) {
    if (!WasSplit(lane)) continue;
    while (lane.whole < rank && (dims[lane.whole] == 1 || IsLane(lanes, lane.whole))) ++lane.whole;
    if (lane.whole == rank) return std::nullopt;
  }
  return next;
}

std::optional<Lanes> AfterReshape(const Dims& from, const Lanes& given, const Dims& to) {
  const std::optional<Lanes> of_next = OfNextDims(given, from);
  if (!of_next) return std::nullopt;
  const Lanes& lanes = *of_next;
  std::vector<int> place(lanes.size(), -1);  // by lane, its dimension of `to`
  std::vector<int64_t> size(lanes.size(), 0);
  std::vector<int> moved(from.size(), -1);  // by dimension that is a whole, that of `to`
  std::vector<size_t> order;                // of the lanes, as their dimensions follow
  for (const Group& group : GroupsOf(from, to)) {
    // The parts of the group, which must be lanes before anything else.
    std::vector<size_t> major;
    std::vector<int> rest;
    for (const int d : group.from) {
      for (size_t i = 0; i < lanes.size(); ++i) {
        if (lanes[i].dim != d) continue;
        if (!rest.empty()) return std::nullopt;
        major.push_back(i);
      }
      if (!IsLane(lanes, d) && Rest(from, lanes, d) > 1) rest.push_back(d);
    }
    size_t t = 0;
    bool merged = false;
    int64_t together = 1;  // of the lanes that are merged into one dimension
    for (const size_t i : major) {
      const int64_t n = SizeOf(from, lanes[i]);
      merged = merged || to[group.to[t]] != n;
      if (merged) together *= n;
      if (to[group.to[t]] % together != 0) return std::nullopt;
      place[i] = group.to[t];
      size[i] = merged ? n : 0;
      if (!merged && ++t == group.to.size() && (i != major.back() || !rest.empty())) {
        return std::nullopt;
      }
    }
    order.insert(order.end(), major.begin(), major.end());
    if (rest.empty()) continue;
    moved[rest[0]] = group.to[t];
    for (size_t k = 1; k < rest.size(); ++k) {
      for (const Lane lane : lanes) {
        if (lane.whole == rest[k]) return std::nullopt;
      }
    }
  }
  if (order.size() != lanes.size()) return std::nullopt;
  Lanes after;
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t i = order[k];
    int whole = WasSplit(lanes[i]) ? moved[lanes[i].whole] : lanes[i].whole;
    if (WasSplit(lanes[i]) && whole < 0) return std::nullopt;
    const bool of_rest = WasSplit(lanes[i]) && from[given[i].whole] == 1;
    if (of_rest && whole > 0 && to[whole - 1] == 1) --whole;
    for (size_t before = 0; before < k; ++before) {  // those of one whole keep their order
      const bool of_same = WasSplit(lanes[i]) && lanes[order[before]].whole == lanes[i].whole;
      if (of_same && order[before] > i) return std::nullopt;
    }
    after.push_back({place[i], whole, size[i], lanes[i].reduce});
  }
  // One that was merged with what it was split from is no lane any more.
  const Lanes all = after;
  const auto is_back = [&](Lane lane) {
    return IsMerged(lane) && lane.whole == lane.dim &&
           std::count_if(all.begin(), all.end(), [&](Lane other) {
             return other.dim == lane.dim || other.whole == lane.dim;
           }) == 1;
  };
  after.erase(std::remove_if(after.begin(), after.end(), is_back), after.end());
  return after;
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
