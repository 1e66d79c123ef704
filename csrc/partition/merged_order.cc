// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/merged_order.h"

#include <algorithm>
#include <utility>

namespace spmd::partition {
namespace {

bool IsCut(const DimOrder::Part& part) { return !part.shard.axes.empty(); }

bool IsEven(int64_t size, const propagate::FactorShard& shard, const Grid& grid) {
  const int64_t shards = grid.size(shard.axes);
  return size % shards == 0 && (shard.chunk == 0 || shard.chunk == size / shards);
}

// Appends a part. Neighbours that are not sharded are one part, so that orders are equal however
// the dimensions were divided: [3,64] and [3,8,8] with 64 and the first 8 sharded alike.
void Append(DimOrder& order, const DimOrder::Part& part) {
  if (!IsCut(part) && !order.parts.empty() && !IsCut(order.parts.back())) {
    order.parts.back().size *= part.size;
  } else {
    order.parts.push_back(part);
  }
}

// The sizes of the parts of all dimensions, in the graph's order.
std::vector<int64_t> PartSizes(const Dims& dims, const DimOrders& order) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < order.size(); ++d) {
    if (order[d].empty()) sizes.push_back(dims[d]);
    for (const DimOrder::Part& part : order[d].parts) sizes.push_back(part.size);
  }
  return sizes;
}

// By part: where it comes from, in the order in which the sharded parts of a dimension come first.
std::vector<int64_t> CutFirst(const DimOrders& order) {
  std::vector<int64_t> from;
  int64_t next = 0;
  for (const DimOrder& dim : order) {
    if (dim.empty()) from.push_back(next++);
    for (const bool cut : {true, false}) {
      for (size_t p = 0; p < dim.parts.size(); ++p) {
        if (IsCut(dim.parts[p]) == cut) from.push_back(next + static_cast<int64_t>(p));
      }
    }
    next += static_cast<int64_t>(dim.parts.size());
  }
  return from;
}

std::vector<int64_t> Inverse(const std::vector<int64_t>& from) {
  std::vector<int64_t> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[from[i]] = static_cast<int64_t>(i);
  return to;
}

}  // namespace

DimSharding DimOrder::ShardingOf(const Grid& grid) const {
  DimSharding sharding;
  int64_t size = 1;
  for (const Part& part : parts) {
    size *= part.size;
    sharding.axes.insert(sharding.axes.end(), part.shard.axes.begin(), part.shard.axes.end());
  }
  for (const Part& part : parts) {
    if (IsCut(part) && part.size != grid.size(part.shard.axes)) {
      const int64_t chunk =
          part.shard.chunk != 0 ? part.shard.chunk : CeilDiv(part.size, grid.size(part.shard.axes));
      sharding.chunk = chunk * (size / part.size);
    }
  }
  if (sharding.chunk == CeilDiv(size, grid.size(sharding.axes))) sharding.chunk = 0;
  return sharding;
}

DimOrder InShards(int64_t size, const DimSharding& cut, const Grid& grid) {
  const int64_t shards = grid.size(cut.axes);
  if (!IsEven(size, {cut.axes, cut.chunk}, grid)) return {{{size, {cut.axes, cut.chunk}}}};
  DimOrder order{{{shards, {cut.axes}}}};
  if (size > shards) order.parts.push_back({size / shards, {}});
  return order;
}

bool operator==(const DimOrder& a, const DimOrder& b) {
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(),
                    [](const DimOrder::Part& x, const DimOrder::Part& y) {
                      return x.size == y.size && IsCut(x) == IsCut(y);
                    });
}

std::optional<DimOrder> OrderOf(const rules::OpFactors& factors, const rules::DimFactors& dim,
                                const propagate::Cut& cut, const Grid& grid) {
  if (dim.size() < 2) return std::nullopt;
  DimOrder order;
  int cut_factors = 0;
  bool uneven = false;
  for (const int f : dim) {
    const int64_t size = factors.factors[f].size;
    const propagate::FactorShard& shard = cut[f];
    if (factors.factors[f].whole) return std::nullopt;
    if (shard.axes.empty()) {
      Append(order, {size, {}});
      continue;
    }
    ++cut_factors;
    const DimOrder inner = InShards(size, {shard.axes, shard.chunk}, grid);
    uneven = uneven || !IsEven(size, shard, grid);
    for (const DimOrder::Part& part : inner.parts) Append(order, part);
  }
  // If shards have unequal sizes, they are intervals only if no other part is sharded.
  if (cut_factors == 0 || (uneven && cut_factors > 1)) return std::nullopt;
  const bool cut_first = std::is_partitioned(order.parts.begin(), order.parts.end(), IsCut);
  if (cut_first) return std::nullopt;
  return order;
}

Dims SizesApart(const DimOrder& order) {
  Dims sizes;
  for (const DimOrder::Part& part : order.parts) {
    if (part.size == 1) continue;
    if (sizes.empty() || IsCut(part)) {
      sizes.push_back(part.size);
    } else {
      sizes.back() *= part.size;
    }
  }
  return sizes;
}

std::optional<Blocks> BlocksOf(const DimOrder& order) {
  const auto first = std::find_if(order.parts.begin(), order.parts.end(), IsCut);
  if (!std::is_partitioned(first, order.parts.end(), IsCut)) return std::nullopt;
  Blocks blocks{1, {{first, order.parts.end()}}};
  for (const DimOrder::Part& part : blocks.inner.parts) blocks.size *= part.size;
  return blocks;
}

DimOrder BlocksInOrder(int64_t count, const DimOrder& inner) {
  DimOrder order{{{count, {}}}};
  order.parts.insert(order.parts.end(), inner.parts.begin(), inner.parts.end());
  return order;
}

bool IsNatural(const DimOrders& order) {
  return std::all_of(order.begin(), order.end(), [](const DimOrder& d) { return d.empty(); });
}

ir::ValueId ApartFromOrder(rules::Builder& builder, ir::ValueId v, const DimOrders& order) {
  const std::vector<int64_t> sizes = PartSizes(builder.type(v).dims, order);
  const std::vector<int64_t> from = CutFirst(order);
  std::vector<int64_t> ordered;
  for (int64_t p : from) ordered.push_back(sizes[p]);
  return builder.Permute(builder.View(v, std::move(ordered)), Inverse(from));
}

ir::ValueId Apart(rules::Builder& builder, ir::ValueId v, const DimOrders& order) {
  return builder.View(v, PartSizes(builder.type(v).dims, order));
}

ir::ValueId InOrder(rules::Builder& builder, ir::ValueId apart, const Dims& dims,
                    const DimOrders& order) {
  return builder.View(builder.Permute(apart, CutFirst(order)), ToVector(dims));
}

Sharding ShardingApart(const Sharding& sharding, const DimOrders& order) {
  Sharding apart;
  for (size_t d = 0; d < order.size(); ++d) {
    if (order[d].empty()) apart.dims.push_back(sharding.dims[d]);
    for (const DimOrder::Part& part : order[d].parts) {
      apart.dims.push_back({part.shard.axes, part.shard.chunk, /*open=*/false});
    }
  }
  return apart;
}

}  // namespace spmd::partition
