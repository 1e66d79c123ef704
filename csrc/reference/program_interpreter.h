// SPDX-License-Identifier: Apache-2.0
// A reference interpreter for programs. It plays every device of the mesh on tiny tensors, so that
// a partitioned program can be compared with its graph without LibTorch. It is not a runtime.
//
// Calls run through csrc/reference/interpreter.h, once per device on its tiles with its local
// attributes. Moves are interpreted by their meaning, not by how they are done: the value is
// assembled from the operand's tiles, its partial results are reduced along the axes on which the
// result is not unreduced, and each device's tile is cut from that; elements outside the value are
// the fill.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/reference/interpreter.h"

namespace spmd::reference {

// Inputs and outputs are global values; an unreduced input is given to coordinate 0 as its term,
// the other coordinates hold the identity.
// Requires: Verify(program).ok().
// Errors: those of InterpretOp, with the instruction; Internal when devices that should
// hold the same tile computed different ones, or when no device holds some element of a value.
absl::StatusOr<std::vector<Literal>> Interpret(const program::Program& program,
                                               absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars = {});

}  // namespace spmd::reference
