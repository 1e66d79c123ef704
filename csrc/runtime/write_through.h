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

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::runtime {

// Where a scatter puts its part: from index `begin` of dimension `dim` on, at every `step`-th
// index, or at one index if the part lacks that dimension. `begin` is nullopt if it is known only
// when the program runs.
struct PartPlace {
  int64_t dim = 0;
  bool drops_dim = false;
  std::optional<int64_t> begin = std::nullopt;
  int64_t step = 1;
  // True if `part`, which shares memory with `whole`, has all its elements at this place of
  // `whole`.
  bool Holds(const at::Tensor& part, const at::Tensor& whole) const;
};

// The other values whose tiles may use the memory of a call's first operand when the call
// overwrites it: %x for index_copy above, %new for select_scatter. The schedule and the run check
// that nothing else reads or holds that memory.
struct Sharers {
  // The value of which the operand is a part, the value of which that is a part, and so on.
  std::vector<program::ValueId> wholes;
  // If the call is a scatter: the part that it puts back, and where.
  program::ValueId part = program::kNoValue;
  PartPlace place = {};
};

// The sharers of each instruction.
std::vector<Sharers> FindSharers(const program::Program& program);

}  // namespace spmd::runtime
