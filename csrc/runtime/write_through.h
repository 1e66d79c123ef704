// SPDX-License-Identifier: Apache-2.0
// Writes to a part of a value that go straight into the value's memory.
//
// (an op that has an in-place form stands for index_copy)
//
//   %part = call aten::select.int(%x, dim=0, index=1)
//   %new  = call aten::index_copy(%part, %where, %rows, dim=2)
//   %y    = call aten::select_scatter(%x, %new, dim=0, index=1)      %x is dead
//
// A part is a view of its value's memory, so index_copy may write into %x where nobody reads %x
// from then on but the scatter, which takes it over; %new then lies where the scatter would put it.
// A scatter may be such a write itself: of a part of a part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "csrc/program/program.h"

namespace spmd::runtime {

// Where a scatter puts its part: at `begin` of dimension `dim`, every `step`-th, or as the one
// index that there is no dimension for. `begin` is none where only the run knows it.
struct PartPlace {
  int64_t dim = 0;
  bool drops_dim = false;
  std::optional<int64_t> begin = std::nullopt;
  int64_t step = 1;
  // True when `part`, which shares memory with `whole`, lies there element by element.
  bool Holds(const at::Tensor& part, const at::Tensor& whole) const;
};

// The other values whose tiles may hold the memory of a call's first operand when it overwrites
// that: of index_copy above %x, of select_scatter %new. That nothing else reads or holds it is for
// the schedule and the run to find out.
struct Sharers {
  // What the operand is a part of, that of which this is a part, and so on.
  std::vector<program::ValueId> wholes;
  // The part that the call, a scatter, puts back, and where to.
  program::ValueId part = program::kNoValue;
  PartPlace place = {};
};

// By instruction. `outlives`: by value, whether it is needed after the program.
std::vector<Sharers> FindSharers(const program::Program& program,
                                 absl::Span<const uint8_t> outlives);

}  // namespace spmd::runtime
