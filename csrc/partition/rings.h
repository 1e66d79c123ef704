// SPDX-License-Identifier: Apache-2.0
// Blocks that travel around a ring of devices instead of being gathered, where memory asks for it.
//
// An op that needs a dimension whole, such as that of the keys in attention, is computed on
// gathered operands otherwise, or decomposed. In a ring each device has one block of that dimension
// at a time, and what it holds does not grow with the number of devices. It sends as much in as
// many collectives as there are devices, of which each waits for the one before. So rings are tried
// only where a program does not fit, and taken if it then holds less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"

namespace spmd::partition {

// The devices of the longest ring: the program has an op for each.
inline constexpr int64_t kLongestRing = 64;

// What was chosen, and what it was instead, for messages.
struct InRings {
  std::vector<std::string> ops;                  // one for each node, by name
  int64_t bytes_before = 0, bytes_after = 0;     // the peak, per device
  int64_t wire_before = 0, wire_after = 0;       // that is sent, per device
  double seconds_before = 0, seconds_after = 0;  // the price of all ops and moves

  // "computes spmd::attention in 2 rings of devices to hold 3 MiB …"; empty if nothing was chosen.
  std::string ToString() const;
};

// Whether PutInRings may change the graph. Requires: `graph` is propagated.
bool MayGoInRings(const ir::Graph& graph);

// Writes each op that can be in steps around the devices that share its blocks. Returns the names
// of these ops, one for each node; if there are any, annotations and factors are stale. Requires:
// `graph` is propagated.
absl::StatusOr<std::vector<std::string>> PutInRings(ir::Graph& graph);

}  // namespace spmd::partition
