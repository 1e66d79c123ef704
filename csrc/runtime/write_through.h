// SPDX-License-Identifier: Apache-2.0
// Writes to a part of a value that go straight into the value's memory.
//
//   %part = call aten::select.int(%x, dim=0, index=1)
//   %new  = call aten::index_copy(%part, %where, %rows, dim=2)
//   %y    = call aten::select_scatter(%x, %new, dim=0, index=1)      %x is dead
//
// A part is a view of its value's memory, so index_copy may write into %x where nobody reads %x
// from then on but the scatter, which takes it over; %new then lies where the scatter would put it.
// A scatter may be such a write itself: of a part of a part.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "csrc/program/program.h"

namespace spmd::runtime {

// The other values whose tiles may hold the memory of a call's first operand when it overwrites
// that: of index_copy above %x, of select_scatter %new. That nothing else reads or holds it is for
// the schedule and the run to find out.
struct Sharers {
  // What the operand is a part of, that of which this is a part, and so on.
  std::vector<program::ValueId> wholes;
  // The part that the call, a scatter, puts back.
  program::ValueId part = program::kNoValue;
};

// By instruction. `outlives`: by value, whether it is needed after the program.
std::vector<Sharers> FindSharers(const program::Program& program,
                                 absl::Span<const uint8_t> outlives);

}  // namespace spmd::runtime
