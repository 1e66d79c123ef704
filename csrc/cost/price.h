// SPDX-License-Identifier: Apache-2.0
// What one step of a move costs: a start, and the bytes that each device sends at the pace of the
// slowest axis that the step crosses.
//
//   all_gather over n of a result of 24 bytes      24·(n-1)/n, one start
//   all_reduce                                     twice that: a reduce_scatter and an all_gather
//   exchange                                       what the worst-off device lacks
//
// A step over several axes is one ring over all of them; that rings over the fast axes alone make
// the piece smaller that goes over the slow one is for the planner to find.
#pragma once

#include <cstdint>

#include "csrc/cost/tile.h"
#include "csrc/machine/machine.h"

namespace spmd::cost {

enum class MoveKind : uint8_t {
  kSlice,
  kAllGather,
  kAllToAll,
  kPermute,   // an exchange in which every device gets one tile as it is
  kExchange,  // any dimensions to any others, unreduced axes as they were
  kAllReduce,
  kReduceScatter,
  kTerm
};

// Bytes per second that a device sends along the slowest of `axes`.
double LinkBandwidth(const machine::Machine& machine, const Grid& grid, AxisMask axes);

// Bytes that a device of a group of n sends, `out` being the bytes of its tile of the result. For
// all kinds but permute and exchange.
double WireBytes(MoveKind kind, double out, int64_t n);

// An exchange (or the permute that it is) between two shardings with the same unreduced axes.
struct Exchange {
  MoveKind kind = MoveKind::kExchange;
  double bytes = 0;
  AxisMask axes = 0;  // those along which anything is sent
  int starts = 1;
};

// Bytes: what the device lacks of its new tile that lacks most. Exact where all shards are even,
// and on up to kMaxDevices devices; an upper bound elsewhere. Never less than what a collective
// that does the same is charged for the same tile. Starts: one for each dimension that axes leave,
// as many as the gathers and all-to-alls have that it stands for; at least one. Requires: the
// shardings differ, and chunks are normalized.
Exchange DescribeExchange(const TensorType& type, const Grid& grid, const Sharding& from,
                          const Sharding& to);

// Of a step of `bytes` at `bandwidth`. Slices and terms cost nothing.
double StepSeconds(MoveKind kind, double bytes, int starts, double bandwidth,
                   const machine::Machine& machine);

}  // namespace spmd::cost
