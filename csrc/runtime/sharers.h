// SPDX-License-Identifier: Apache-2.0
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
// overwrites it (csrc/runtime/one_place/write_through.h). The schedule and the run check that
// nothing else reads or holds that memory. If there are none, the call overwrites its operand only
// if it alone holds the memory.
struct Sharers {
  // The value of which the operand is a part, the value of which that is a part, and so on.
  std::vector<program::ValueId> wholes;
  // If the call is a scatter: the part that it puts back, and where.
  program::ValueId part = program::kNoValue;
  PartPlace place = {};
};

}  // namespace spmd::runtime
