// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/op.h"

#include <algorithm>

#include "csrc/cost/tile.h"

namespace spmd::cost {

void OpCost::AddFactor(int64_t size, const DimSharding& cut) {
  flops_ *= static_cast<double>(MaxShardSize(cut, size, grid_));
}

void OpCost::AddTensor(const TensorType& type, const Sharding& sharding) {
  bytes_ += static_cast<double>(TileBytes(type, sharding, grid_));
}

double OpCost::Seconds(const Prices& prices) const {
  return std::max(flops_ / prices.flops, prices.memory_weight * bytes_ / prices.memory_bandwidth);
}

}  // namespace spmd::cost
