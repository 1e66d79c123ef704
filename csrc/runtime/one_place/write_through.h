// SPDX-License-Identifier: Apache-2.0
// Write-through: writes to a part of a value that go directly into the value's memory.
//
// (index_copy stands for any op that has an in-place form)
//
//   %part = call aten::select.int(%x, dim=0, index=1)
//   %new  = call aten::index_copy(%part, %where, %rows, dim=2)
//   %y    = call aten::select_scatter(%x, %new, dim=0, index=1)      %x is dead
//
// A part is a view of its value's memory. index_copy may therefore write into %x, provided that
// nothing reads %x afterwards except the scatter, which takes over its memory; %new is then already
// where the scatter would put it. A scatter may be such a write itself, to a part of a part.
#pragma once

#include <vector>

#include "csrc/program/program.h"
#include "csrc/runtime/sharers.h"

namespace spmd::runtime {

// The sharers of each instruction.
std::vector<Sharers> FindSharers(const program::Program& program);

}  // namespace spmd::runtime
