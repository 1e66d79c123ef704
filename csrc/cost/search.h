// SPDX-License-Identifier: Apache-2.0
// The search for a move that is cheaper than the usual one of PlanMove.
//
// States are shardings; edges are the steps that the runtime can do, priced by price.h. The search
// is best-first with a lower bound on the remaining cost: every device must be sent what it lacks,
// and every sum of n partial sums takes n-1 messages for the first device that holds it and one for
// each other.
//
// Where all axes have one bandwidth and nothing is reduced, no move is cheaper and the search ends
// at once. On up to kSeparateAxes sub-axes each moves alone; on more, sub-axes that stay
// adjacent move together. The usual plan stands if the sharding needs more than kMaxAtoms of these
// or kMaxExpanded states were expanded. Ties go to the state that was found first, so the result
// depends on the arguments alone.
#pragma once

#include <optional>

#include "csrc/cost/move.h"

namespace spmd::cost {

// The steps from `from` to `to` that take the least total time, if that is less than `limit`
// seconds; nullopt if there are none or the search gives up. The last step's result is `to` except
// for unreduced axes: those of `to` that `from` lacks are left out, and those of both may be
// reduced.
// Requires: as PlanMove; chunks are normalized and dimensions closed.
std::optional<absl::InlinedVector<MoveStep, 2>> FindCheaperMove(const TensorType& type,
                                                                const Grid& grid,
                                                                const Sharding& from,
                                                                const Sharding& to,
                                                                const Prices& prices, double limit);

}  // namespace spmd::cost
