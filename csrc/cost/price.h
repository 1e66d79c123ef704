// SPDX-License-Identifier: Apache-2.0
// What one step of a move costs: a start, and the bytes that each device is sent at the pace of the
// slowest axis that the step crosses.
//
//   all_gather, all_to_all, permute, exchange      what the worst-off device lacks of its new tile
//   reduce_scatter over n to tiles of 24 bytes     24·(n-1)
//   all_reduce over n                              a reduce_scatter and an all_gather
//
// So no way round is cheaper than the way from one sharding to another at once, but where axes
// differ or terms are reduced. A step over several axes is one ring over all of them; that rings
// over the fast axes alone make the piece smaller that goes over the slow one is for the planner to
// find.
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

// Bytes of an all-reduce or a reduce-scatter of n terms, `out` being those of a tile of the result.
double ReductionBytes(MoveKind kind, double out, int64_t n);

// What moves between two shardings with the same unreduced axes.
struct Exchange {
  MoveKind kind = MoveKind::kExchange;  // or kPermute
  double bytes = 0;
  AxisMask axes = 0;  // those along which anything is sent
  int starts = 1;
};

// Bytes: what that device lacks of its new tile that lacks most. Exact where all shards are even,
// and along up to kMaxDevices devices; an upper bound elsewhere. Starts: one for each dimension
// that axes leave, as many as the gathers and all-to-alls have that it stands for; at least one.
// Requires: the shardings differ, and chunks are normalized.
Exchange DescribeExchange(const TensorType& type, const Grid& grid, const Sharding& from,
                          const Sharding& to);

// Of a step of `bytes` at `bandwidth`. Slices and terms cost nothing.
double StepSeconds(MoveKind kind, double bytes, int starts, double bandwidth,
                   const machine::Machine& machine);

}  // namespace spmd::cost
