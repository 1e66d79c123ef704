// SPDX-License-Identifier: Apache-2.0
// Orders of a merged dimension other than the graph's.
//
// If [T,B] is merged into one dimension of T·B indices, the indices of a shard of B are not an
// interval of it. If the parts that are sharded come first instead, each device has its indices
// side by side and merges its own tile:
//
//   x: f32[32,8,64] {},{data},{}        data = 4
//   parts of the merged dimension       32, 4 (data), 2     B is 4 shards of 2
//   view x as [32,4,2,64], permute to [4,32,2,64], view as [256,64] {data},{}
//
// On a device the part 4 has size 1, so neither the view nor the permutation moves anything.
#pragma once

#include <optional>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// The parts of one dimension in the graph's order, major first. If there are none, the dimension is
// in the graph's order.
struct DimOrder {
  struct Part {
    int64_t size;
    propagate::FactorShard shard;  // sharded parts come first in the new order
  };
  std::vector<Part> parts;

  bool empty() const { return parts.empty(); }
  // The sharding of the dimension in this order.
  DimSharding ShardingOf(const Grid& grid) const;
  // Equal if the indices are in the same order, whichever axes shard them.
  friend bool operator==(const DimOrder& a, const DimOrder& b);
};

// The parts of a dimension of `size` indices in which each shard is an interval: the shards, and
// the indices in a shard; or one part, if the shards have different sizes. Requires: `cut` has
// axes.
DimOrder InShards(int64_t size, const DimSharding& cut, const Grid& grid);

// The order in which each shard of a result's dimension that merges the factors `dim` is an
// interval under `cut`; nullopt if this is so in the graph's order already, or in no order.
std::optional<DimOrder> OrderOf(const rules::OpFactors& factors, const rules::DimFactors& dim,
                                const propagate::Cut& cut, const Grid& grid);

// The sizes of the dimensions to which the parts belong: each sharded part begins a dimension.
Dims SizesApart(const DimOrder& order);
// Consecutive blocks of one dimension. BlocksOf gives the order as blocks in each of which a shard
// is an interval; nullopt if it is not of this form.
struct Blocks {
  int64_t size;
  DimOrder inner;  // of one block
};
std::optional<Blocks> BlocksOf(const DimOrder& order);
// The order of `count` such blocks.
DimOrder BlocksInOrder(int64_t count, const DimOrder& inner);

// The orders of all dimensions of a value.
using DimOrders = std::vector<DimOrder>;

bool IsNatural(const DimOrders& order);
// The value `v` with the parts of its dimensions as dimensions, in the graph's order.
// ApartFromOrder takes a value that is in `order`, Apart one that is in the graph's order.
ir::ValueId ApartFromOrder(rules::Builder& builder, ir::ValueId v, const DimOrders& order);
ir::ValueId Apart(rules::Builder& builder, ir::ValueId v, const DimOrders& order);
// The value of `dims` in `order`, from the value `apart` whose dimensions are the parts.
ir::ValueId InOrder(rules::Builder& builder, ir::ValueId apart, const Dims& dims,
                    const DimOrders& order);
// The sharding of the value whose dimensions are the parts, if `sharding` is that of the value in
// `order`.
Sharding ShardingApart(const Sharding& sharding, const DimOrders& order);

}  // namespace spmd::partition
