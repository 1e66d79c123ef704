// SPDX-License-Identifier: Apache-2.0
// Chooses the devices of one place that stay apart when a program is coalesced, so that groups of
// devices take turns: each runs its whole share before the next group starts.
//
// A coalesced program holds the activations of all devices at once. Where the batch is sharded and
// the parameters are not, a few groups of devices that run one after the other hold the activations
// of one group at a time, and compute the same. For [data=64], eight groups of eight stay apart, by
// data:0, data:1, data:2.
#pragma once

#include <cstdint>

#include "csrc/program/program.h"

namespace spmd::program {

struct TurnOptions {
  int64_t most_groups = 8;
  int64_t more_groups_than = 1;  // the number that runs at the same time
  // Taking turns pays if at least `least_saved` bytes are saved at the peak, these are a quarter of
  // the peak, and an instruction produces `least_made` bytes for a group on average.
  bool where_it_pays = true;  // false: take turns wherever it is possible
  int64_t least_saved = int64_t{32} << 20;
  int64_t least_made = int64_t{64} << 10;
};

// The major sub-axes of one mesh axis that CoalesceKeeping should keep. 0 if no axis qualifies:
// windows or uneven shards lie along it; inputs or outputs are sharded over it, which are held
// whole, so that assembling them costs too much; or taking turns does not pay.
AxisMask AxesForTurns(const Program& program, const TurnOptions& options);

}  // namespace spmd::program
