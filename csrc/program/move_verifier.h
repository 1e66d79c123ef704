// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "csrc/program/program.h"

namespace spmd::program {

// Clauses 3 and 4 of Verify: the move turns its operands' shardings into its results' as its axes
// and dimensions say.
// Requires: IsMove(move.code); operands and results exist and fit their types.
absl::Status VerifyMove(const Program& program, const Instruction& move);

}  // namespace spmd::program
