// SPDX-License-Identifier: Apache-2.0
// A reference interpreter for programs: plays every device of the mesh on tiny tensors, so that
// what partition makes can be compared with the graph it was made from, without LibTorch. Not a
// runtime.
//
// Calls run as csrc/ir/interpreter.h runs them, per device on its tiles with its local attributes.
// Moves are what they mean, not how they are done: the value is put together from the operand's
// tiles, its terms are reduced along the axes on which the result is not unreduced, and each
// device's part is cut out; elements outside the value are the fill.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/ir/interpreter.h"
#include "csrc/program/program.h"

namespace spmd::program {

// Inputs and outputs are whole values; an input that is unreduced comes in as the term of
// coordinate 0. Requires: Verify(program).ok().
// Errors: those of ir::InterpretOp, with the instruction; Internal when devices that should hold
// the same tile computed different ones, or when a part of a value is held by nobody.
absl::StatusOr<std::vector<ir::Literal>> Interpret(const Program& program,
                                                   absl::Span<const ir::Literal> inputs,
                                                   absl::Span<const double> scalars = {});

}  // namespace spmd::program
