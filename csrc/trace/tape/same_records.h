// SPDX-License-Identifier: Apache-2.0
// Whether two recordings say the same, compared record by record. Keys only find candidates: a
// program or a recording that is found by its key is compared before it is used.
#pragma once

#include <cstdint>

#include "csrc/trace/tape/recording.h"

namespace spmd::trace {

// True if the records have the same op, operands and structural arguments. `different` gets a bit
// for each argument whose value is structural and differs.
bool SameButFor(const Record& a, const Record& b, uint64_t& different);

// True if the first `events` events are the same in both: inputs, records with their results, and
// annotations.
bool SameBeginning(const Recording& a, const Recording& b, int32_t events);

// True if they are the same, apart from starts (csrc/trace/tape/starts.h).
bool SameButForStarts(const Recording& a, const Recording& b);

}  // namespace spmd::trace
