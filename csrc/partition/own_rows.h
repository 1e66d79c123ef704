// SPDX-License-Identifier: Apache-2.0
// Rows that are taken out of a sharded dimension by a list of indices stay on the devices that have
// them.
//
// A list names rows of the whole dimension, and which device has a row is known when the program
// runs. So a device cannot have its own rows only, but it can have the whole list of rows, of which
// those of its own block are right and the others are anything. Here a value of n rows becomes one
// of k·n, for a dimension in k blocks: rows b·n to (b+1)·n belong to block b, and row b·n + r is
// right if index r is in block b. Sharded over k devices, this is n rows on each. An op that works
// on every row by itself does the same to k·n rows. Where rows are summed (the gradient of a
// weight), those that belong to another block are zeros; where they are written back by the same
// list, they are skipped. Neither sends anything but the partial sums of the former.
//
// The rows as they were are the sum of the blocks: what cannot be done block by block gets them.
//
// Rows of all blocks may also come from an earlier program and go to a later one: they begin at
// spmd::rows_together and end at spmd::rows_apart.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/propagate/graph_factors.h"
#include "csrc/rules/tables/row_index.h"

namespace spmd::partition {

// True if it changed any; then `factors`, those of `graph` before the call, are stale.
// Requires: `graph` is propagated.
absl::StatusOr<bool> OwnRows(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors);

// What an output is that is computed for all blocks, and the number of the list by which it is.
struct OwnedOutput {
  rules::BlocksOfRows of;
  int list = 0;
};
// For each of the first outputs: what it is if OwnRows computes it for all blocks, and if the graph
// also writes rows back by its list. The last `lists` outputs are the lists that are considered.
// Requires: `graph` is propagated.
absl::StatusOr<std::vector<std::optional<OwnedOutput>>> OwnedOutputs(
    const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors, int lists);

}  // namespace spmd::partition
