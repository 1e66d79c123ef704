// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "csrc/program/program.h"

namespace spmd::program {

// What Verify asks of one call: one grid, groups in range, attributes that speak of what exists,
// and operands added once where the result has terms. Requires: operands and results exist or are
// absent, and fit their types.
absl::Status VerifyCall(const Program& program, const Instruction& call);

// The operand that `updates` names exists, is the program's to overwrite and has the result's type
// and tiles. Requires: as VerifyCall; updates != -1.
absl::Status VerifyUpdates(const Program& program, const Instruction& call);

}  // namespace spmd::program
