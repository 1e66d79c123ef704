// SPDX-License-Identifier: Apache-2.0
// The text of explain_compile about two tapes that are equal up to a record.
#pragma once

#include <string>
#include <vector>

#include "csrc/trace/tape/recording.h"

namespace spmd::trace {

// For example "op 7, aten::linalg_vector_norm (train.py:12), differs from program 3: ord 2 → 3":
// first what `theirs` had, then what `mine` has. Arguments are named; otherwise types, marks and
// wiring of operands are compared. `which` names the owner of `theirs`.
// Requires: `theirs` and `mine` have a record with number `record`, and all records before it are
// equal.
std::string DescribeDifference(const Recording& theirs, const Recording& mine, size_t record,
                               const std::string& which);

// What a call's text leaves out, one sentence each, for example "dim is 1", "the mark of input is
// ('data', None) on [data=8]" and "input is the result of call 3, aten::relu at train.py:12". Two
// calls with the same text have as many.
std::vector<std::string> DescribeDetails(const Recording& recording, size_t record);

// "('data', None) on [data=8] over devices 0..7", or "none".
std::string MarkToString(const MarkPtr& mark);

}  // namespace spmd::trace
