// SPDX-License-Identifier: Apache-2.0
// What processes send to each other for a move.
//
// A sum whose partial sums lie in several processes is taken in two levels: each process adds its
// own in device order, sends one result, and those are added in the order of the processes. All
// processes add in the same way, so replicas of the sum have the same bits.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/peers.h"
#include "csrc/runtime/placement.h"

namespace spmd::runtime {

// Fills in plan.transfer and lets the tiles of this process read what it receives. `make` gives
// each tile as a process makes it, of the tiles of all processes; plan.tiles has those of this one.
// With `one_by_one` every partial sum travels alone.
void PlanTransfer(const Placement& from, const Placement& to, const Peers& peers, bool one_by_one,
                  absl::FunctionRef<TileMove(int64_t index, int process)> make, MovePlan& plan);

}  // namespace spmd::runtime
