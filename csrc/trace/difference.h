// SPDX-License-Identifier: Apache-2.0
// What explain_compile says of two tapes that are equal up to a record.
#pragma once

#include <string>

#include "csrc/trace/recording.h"

namespace spmd::trace {

// "op 7, aten::linalg_vector_norm (train.py:12), differs from program 3: ord 2 → 3". Says what
// `theirs` had and what `mine` has: arguments by name; else types, marks and wiring of operands.
// `which`: what `theirs` belongs to.
// Requires: both have a record of this number, and none before it differs.
std::string DescribeDifference(const Recording& theirs, const Recording& mine, size_t record,
                               const std::string& which);

}  // namespace spmd::trace
