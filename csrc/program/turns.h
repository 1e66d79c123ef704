// SPDX-License-Identifier: Apache-2.0
// Which devices of one place should stay apart, so that they can take turns.
//
// Coalesced, a program holds the activations of all devices at once. Where the batch is cut and
// parameters are not, a few groups of devices one after the other hold those of one group only, and
// compute the same; of [data=64] eight groups of eight are kept apart, by data:0, data:1, data:2.
#pragma once

#include <cstdint>

#include "csrc/program/program.h"

namespace spmd::program {

struct TurnOptions {
  int64_t most_groups = 8;
  int64_t more_groups_than = 1;  // as many work at the same time
  // What must be saved at the peak, and what an instruction must make for a group, for turns to be
  // worth it; both in bytes. Also, a quarter of the peak must be cut.
  bool where_it_pays = true;  // false: wherever it is possible
  int64_t least_saved = int64_t{32} << 20;
  int64_t least_made = int64_t{64} << 10;
};

// Major sub-axes of one mesh axis for Coalesce to keep; 0 where none will do: where windows or
// uneven shards are cut by them, where inputs and outputs are (which are kept whole, so that their
// parts would have to be put together), or where it does not pay.
AxisMask AxesForTurns(const Program& program, const TurnOptions& options);

}  // namespace spmd::program
