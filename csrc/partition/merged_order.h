// SPDX-License-Identifier: Apache-2.0
// Other orders of a merged dimension.
//
// [T,B] merged into one dimension of T·B indices has the indices of a shard of B apart: no interval
// holds them. In the order in which the parts that are cut come first, each device has what it
// holds side by side, and merges its own tile:
//
//   x: f32[32,8,64] {},{data},{}        data = 4
//   parts of the merged dimension       32, 4 (data), 2     B is 4 shards of 2
//   view x as [32,4,2,64], permute to [4,32,2,64], view as [256,64] {data},{}
//
// On a device the part 4 has size 1, so that neither the view nor the permutation moves anything.
#pragma once

#include <optional>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// The parts of one dimension in the order that the graph gives them, major first. None: the
// dimension is as it is.
struct DimOrder {
  struct Part {
    int64_t size;
    propagate::FactorShard shard;  // cut parts come first
  };
  std::vector<Part> parts;

  bool empty() const { return parts.empty(); }
  // How the dimension is cut in this order.
  DimSharding ShardingOf(const Grid& grid) const;
  // The same order of indices, whatever axes cut them.
  friend bool operator==(const DimOrder& a, const DimOrder& b);
};

// A dimension that is an interval per shard: the shards, and what is in them; one part where they
// are of unequal sizes. Requires: `cut` has axes.
DimOrder InShards(int64_t size, const DimSharding& cut, const Grid& grid);

// The order in which a result's dimension that merges `dim` is an interval per shard under `cut`;
// nullopt where it is one already, or in none.
std::optional<DimOrder> OrderOf(const rules::OpFactors& factors, const rules::DimFactors& dim,
                                const propagate::Cut& cut, const Grid& grid);

// The sizes of the dimensions that the parts are of, each cut from its beginning.
Dims SizesApart(const DimOrder& order);
// As blocks of one dimension, of which each is an interval per shard; nullopt where they are not.
struct Blocks {
  int64_t size;
  DimOrder inner;  // of one block
};
std::optional<Blocks> BlocksOf(const DimOrder& order);
// So many blocks.
DimOrder BlocksInOrder(int64_t count, const DimOrder& inner);

// By dimension.
using Order = std::vector<DimOrder>;

bool IsNatural(const Order& order);
// `v` with the parts of its dimensions as dimensions, in the graph's order: of a value that is
// in `order`, and of one that is in none.
ir::ValueId ApartFromOrder(rules::Builder& builder, ir::ValueId v, const Order& order);
ir::ValueId Apart(rules::Builder& builder, ir::ValueId v, const Order& order);
// A value of `dims` in `order`, from one whose dimensions are the parts.
ir::ValueId InOrder(rules::Builder& builder, ir::ValueId apart, const Dims& dims,
                    const Order& order);
// How the value is cut whose dimensions are the parts, if `sharding` cuts the one in `order`.
Sharding ShardingApart(const Sharding& sharding, const Order& order);

}  // namespace spmd::partition
