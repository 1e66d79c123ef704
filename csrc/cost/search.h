// SPDX-License-Identifier: Apache-2.0
// The search for a move that is cheaper than the usual one.
//
// States are shardings; edges are the steps that the runtime can do, priced by price.h. Best first,
// with a bound from below on what is left: every device must be sent what it lacks, and every sum
// of n terms takes n-1 messages for the first device that has it and one for each other.
//
// Without terms to reduce, where all axes are alike, there is nothing to find. Elsewhere, on up to
// kSeparateAxes sub-axes, sub-axes travel one by one; on more, those that stay side by side travel
// together. The search gives up after kMaxExpanded states, or at once where there is more to tell
// apart than fits a state: the usual plan stands. Ties go to what was found first, so the result
// depends on nothing but the arguments.
#pragma once

#include <optional>

#include "csrc/cost/move.h"

namespace spmd::cost {

// The steps from `from` to `to` that take less than `limit` seconds in sum and as little as
// possible; nothing where there are none, or where the search gives up.
// The last step's result is `to` but for terms: those that `to` has and `from` has not are left
// out, and reduced ones may be.
// Requires: as PlanMove; chunks are normalized, and dimensions closed.
std::optional<absl::InlinedVector<MoveStep, 2>> FindCheaperMove(
    const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to,
    const machine::Machine& machine, double limit);

}  // namespace spmd::cost
