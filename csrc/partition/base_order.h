// SPDX-License-Identifier: Apache-2.0
// Puts instructions where the program holds the least, near the order in which they were traced.
//
// The order of the trace is good for memory: autograd frees what it no longer needs, and
// recomputation stands right before the gradients that ask for it. Moves, however, stand where
// their results are used, and optimizers compute roots and decayed weights of all parameters before
// they update the first. So
//
//   - a reduction, or a move that makes its operand smaller, goes right after the instruction that
//     makes the operand if nothing else uses it: a gradient is reduced and cut as soon as it
//     exists;
//   - an element-wise call, and a move that makes its operand larger, go to the first use of their
//     results, unless more bytes of operands would be held meanwhile than the results take.
//
//   %1: f32[8,8] unreduced{x} = call dweight       %1: … = call dweight
//   %2: f32[8,8] = call mul.Scalar(%w)             %5: … = reduce_scatter(%1)
//   %3: f32[8,8] unreduced{x} = call dweight       %3: … = call dweight
//   %4: f32[8,8] = call mul.Scalar(%v)             %6: … = reduce_scatter(%3)
//   %5: f32[8,8] {x},{} = reduce_scatter(%1)       %2: … = call mul.Scalar(%w)
//   %7: f32[8,8] {x},{} = call sub(%2, %5)         %7: … = call sub(%2, %5)
//   %6: f32[8,8] {x},{} = reduce_scatter(%3)       %4: … = call mul.Scalar(%v)
//   %8: f32[8,8] {x},{} = call sub(%4, %6)         %8: … = call sub(%4, %6)
//
// Only calls that cannot fail are moved, so that they may overwrite an input in the end. This takes
// time linear in instructions and operands.
#pragma once

#include "csrc/program/program.h"

namespace spmd::partition {

// Requires: no frees, no updates, no merged collectives. The same holds for the result.
void BaseOrder(program::Program& program);

}  // namespace spmd::partition
