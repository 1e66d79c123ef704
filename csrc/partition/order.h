// SPDX-License-Identifier: Apache-2.0
// The order of a program's instructions, and which collectives are one instruction.
//
// Starts from the base order (base_order.h), in which a program holds little, and merges
// collectives of one kind over the same axes where that takes little memory. A reduction waits for
// others of its kind until a result is needed or the group is full. When a result is needed, the
// next few reductions of that kind whose operands can be made without waiting for anything are made
// first. A gather takes the next gathers of its kind along.
//
//   base                                     merged, where there are 300 bytes to spare
//   %1: … unreduced{data} = call dweight     %1: … = call dweight
//   %2: … = reduce_scatter(%1)               %3: … = call dweight
//   %3: … unreduced{data} = call dweight     %2, %4 = reduce_scatter(%1, %3)
//   %4: … = reduce_scatter(%3)
//
// A gather is sent one ahead of the one whose result is worked on, if the base order holds so much
// less until it is needed that the peak does not grow.
//
// What is held longer than in the base order is counted: operands that wait for a reduction,
// results that are made ahead of their turn, and gathers that come early. Where that is more than
// the base order leaves below its peak meanwhile, there are never more than `slack_bytes` of it.
// Hence
//
//   peak after Order <= peak before it + slack_bytes,
//
// where no call overwrites an operand. This takes time linear in instructions and operands, up to a
// logarithm.
#pragma once

#include <cstdint>

#include "csrc/machine/machine.h"
#include "csrc/program/program.h"

namespace spmd::partition {

struct OrderOptions {
  int64_t cap_bytes = 0;         // the most that a merged reduction moves
  int64_t gather_cap_bytes = 0;  // the most that a merged gather moves
  int64_t slack_bytes = 0;       // the most by which the peak may grow
};

// The part of a device's memory that a program may fill before collectives are merged.
// Requires: the machine's memory is known.
int64_t MemoryToFill(const machine::Machine& machine);

// Both caps are `cap_bytes`. If that is 0, a gather, for which what follows waits, moves so many
// bytes that starting it takes a small part of its time on `machine`; a reduction moves as many, or
// a small part of the device's memory if that is more. The slack is four times as much, or less if
// `program` leaves less memory free, but at least a thousandth of the device's.
// Requires: `program` is in the base order.
OrderOptions OptionsFor(const program::Program& program, const machine::Machine& machine,
                        int64_t cap_bytes);

struct OrderWork {
  int64_t steps = 0;  // instructions and operands that were looked at
};

// Requires: no frees, no updates, no merged collectives. The first two hold for the result, too.
OrderWork Order(program::Program& program, const OrderOptions& options);

}  // namespace spmd::partition
