// SPDX-License-Identifier: Apache-2.0
// The time that one device spends on its tile of an op.
//
//   mm 1024×1024×1024 on 4 devices, m sharded: 256×1024×1024 multiply-adds; a quarter of the left
//   operand, all of the right operand and a quarter of the result through memory. The slower
//   counts.
#pragma once

#include <cstdint>

#include "csrc/cost/price.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::cost {

// The work on the largest tile: a point for each index of the op's factors, and the bytes of its
// operands and results. Rows and columns that a machine pads are not counted.
class OpCost {
 public:
  // Keeps a reference to `grid`.
  OpCost(double flops_per_point, const Grid& grid) : flops_(flops_per_point), grid_(grid) {}

  // The op has a factor of `size` indices, sharded as `cut`.
  void AddFactor(int64_t size, const DimSharding& cut);
  // An operand or a result is held as `sharding`.
  void AddTensor(const TensorType& type, const Sharding& sharding);

  double Seconds(const Prices& prices) const;

 private:
  double flops_;
  double bytes_ = 0;
  const Grid& grid_;
};

}  // namespace spmd::cost
