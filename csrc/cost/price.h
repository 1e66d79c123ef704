// SPDX-License-Identifier: Apache-2.0
// The cost of one step of a move: a fixed start, and the bytes that each device is sent, at the
// bandwidth of the slowest axis that the step crosses.
//
//   all_gather, all_to_all, permute, exchange      what the worst-off device lacks of its new tile
//   reduce_scatter over n to tiles of 24 bytes     24·(n-1)
//   all_reduce over n                              a reduce_scatter and an all_gather
//
// A direct move is optimal unless axis bandwidths differ or partial sums are reduced. A step over
// several axes is one ring over all of them. Reducing over the fast axes first shrinks what crosses
// the slow axis; the search (search.h) finds such orders.
#pragma once

#include <cstdint>

#include "csrc/cost/tile.h"
#include "csrc/machine/machine.h"

namespace spmd::cost {

enum class MoveKind : uint8_t {
  kSlice,
  kAllGather,
  kAllToAll,
  kPermute,   // an exchange in which every device receives one whole tile
  kExchange,  // any change of the dims' shards; unreduced axes stay
  kAllReduce,
  kReduceScatter,
  kTerm
};

// How much of a machine's figures counts in a price. A search counts less of what its program will
// not pay in full.
struct Weights {
  double latency = 1;
  double memory = 1;
};

// The figures of a machine as prices use them.
struct Prices {
  // Implicit: a machine alone has prices of full weight.
  Prices(const machine::Machine& machine, Weights weights = {});  // NOLINT

  double flops;             // per second and device
  double memory_bandwidth;  // bytes per second and device
  double memory_weight;     // of the time that memory takes
  double link_bandwidth;    // bytes per second, one way, per device
  double latency;           // seconds per collective, with its weight
};

// Bytes per second that a device sends along the slowest of `axes`; the machine's where there are
// none.
double LinkBandwidth(const Prices& prices, const Grid& grid, AxisMask axes);

// Bytes sent per device by an all-reduce or a reduce-scatter of n partial results, where a tile of
// the result has `out` bytes.
double ReductionBytes(MoveKind kind, double out, int64_t n);

// What moves between two shardings with equal unreduced axes.
struct Exchange {
  MoveKind kind = MoveKind::kExchange;  // or kPermute
  double bytes = 0;
  AxisMask axes = 0;  // the axes along which anything is sent
  int starts = 1;
  bool is_exact = true;  // false: `bytes` is an upper bound
};

// `bytes` is what the worst-off device lacks of its new tile: exact where all shards are even or
// where the changed axes span at most kMaxDevices devices, an upper bound elsewhere. `starts` has
// one for each dimension that loses axes, as many as the all-gathers and all-to-alls that the
// exchange replaces have; at least one.
// Requires: the shardings differ and their chunks are normalized.
Exchange DescribeExchange(const TensorType& type, const Grid& grid, const Sharding& from,
                          const Sharding& to);

// Seconds of a step that sends `bytes` at `bandwidth`. Slices and kTerm steps cost nothing.
double StepSeconds(MoveKind kind, double bytes, int starts, double bandwidth, const Prices& prices);

// `bytes` as tables write it: rounded down, except that a sum of fractions that is the least bit
// below an integer is that integer.
int64_t WholeBytes(double bytes);

}  // namespace spmd::cost
