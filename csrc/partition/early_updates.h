// SPDX-License-Identifier: Apache-2.0
// Puts the update of each parameter into the backward pass, right after its gradient, which is
// given up there.
//
//   %1: … = call dweight                 of the last layer       %1: … = call dweight
//   %2: … = call mm                      the next gradient       %5: … = call sub(%w, %1)
//   %3: … = call dweight                 of the first layer      %2: … = call mm
//   %5: … = call sub(%w, %1)             becomes %w              %3: … = call dweight
//   %6: … = call sub(%v, %3)             becomes %v              %6: … = call sub(%v, %3)
//
// Behind the last call of the backward pass that does more than single elements, instructions that
// use each other's results make a group: the update of one parameter, or of all, where they share a
// norm. A group is moved up to where its operands are made and nothing else uses the inputs that it
// replaces, if less is held after it than before it, and if there is room for what it holds
// meanwhile. The others run after the backward pass, one after the other. Where a collective makes
// the gradient, the group would wait for it, so it goes some instructions after it: as many, of a
// few numbers, as memory allows.
#pragma once

#include <cstdint>

#include "csrc/program/program.h"

namespace spmd::partition {

// Moves groups if that lowers the peak; the result says whether it has. Where updates wait for
// collectives, they come no earlier than a peak of `wanted_bytes` asks for. The peak that a program
// has if no call overwrites an operand never grows. No update comes before a call that may fail on
// the values at hand (LastThatMayFail), so that a failure finds all parameters as they were. This
// takes time linear in instructions and operands, up to a logarithm.
//
// Requires: no frees, no updates, no merged collectives. The same holds for the result.
bool UpdateEarly(program::Program& program, int64_t wanted_bytes = 0);

}  // namespace spmd::partition
