// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "csrc/program/program.h"

namespace spmd::program {

// Verifies one call: all its values are in one grid, groups are in range, attributes refer to what
// exists, and operands are added once where the result is unreduced.
// Requires: operands and results exist or are absent, and fit their types.
absl::Status VerifyCall(const Program& program, const Instruction& call);

// Verifies that the operand that `updates` names exists, may be overwritten by the program, and has
// the type and tiles of result 0.
// Requires: as VerifyCall; updates != -1.
absl::Status VerifyUpdates(const Program& program, const Instruction& call);

}  // namespace spmd::program
