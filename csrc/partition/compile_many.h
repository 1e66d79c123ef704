// SPDX-License-Identifier: Apache-2.0
// Compiles many graphs for one machine, such as the candidates for a mesh of it: they ask for the
// prices of the same moves.
#pragma once

#include "absl/status/statusor.h"
#include "csrc/partition/compile.h"
#include "csrc/partition/move_memo.h"

namespace spmd::partition {

// As Compile(graph, options). What `moves` knows from earlier graphs is not computed again.
// Requires: `moves` has the SearchPrices (plan_memo.h) of the machine of `options`.
absl::StatusOr<Compiled> Compile(const ir::Graph& graph, const CompileOptions& options,
                                 MoveMemo& moves);

}  // namespace spmd::partition
