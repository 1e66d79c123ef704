// SPDX-License-Identifier: Apache-2.0
// The steps that take a value from one sharding to another, and what they cost.
//
//   {data},{}  ->  {},{data}                    all_to_all(data, 0->1)
//   {},{} unreduced(sum){x}  ->  {x},{}         reduce_scatter(x, 0)
//   {a},{}     ->  {},{}                        all_gather(a, 0)
//   {x,y}      ->  {y,x}                        permute
//   {x,y}, 10 rows  ->  {x}, 10 rows            exchange: chunks of 3 do not merge to chunks of 5
//   {m} unreduced(sum){x}  ->  {x,m}            reduce_scatter(x, 0), then permute the smaller tile
#pragma once

#include "absl/container/inlined_vector.h"
#include "csrc/cost/price.h"
#include "csrc/cost/tile.h"
#include "csrc/ir/type.h"
#include "csrc/machine/machine.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::cost {

struct MoveStep {
  MoveKind kind;
  AxisList axes;
  int dim = -1;
  int to_dim = -1;
  Sharding result;
  int64_t wire_bytes = 0;  // sent per device
  double seconds = 0;
};

struct MovePlan {
  absl::InlinedVector<MoveStep, 2> steps;  // empty: nothing to do
  int64_t wire_bytes = 0;
  double seconds = 0;
};

// The cheapest plan by the prices of price.h. It starts from the usual order: slices (they shrink
// what is reduced), reduce-scatters, all-reduces, all-to-alls, all-gathers, slices. One exchange
// replaces the steps after the reductions where the boundaries between shards do not allow them or
// where it is cheaper. MoveSearch (search.h) replaces the whole plan if it finds a strictly cheaper
// one.
// Requires: both shardings are in `grid` and fit `type`. The last step's result is exactly `to`.
MovePlan PlanMove(const TensorType& type, const Grid& grid, const Sharding& from,
                  const Sharding& to, const Prices& prices);

}  // namespace spmd::cost
