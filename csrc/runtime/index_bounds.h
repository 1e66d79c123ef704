// SPDX-License-Identifier: Apache-2.0
// Calls that refuse indices out of range, where the indices were given to the program: whether such
// a call will fail can then be seen before anything has run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "csrc/program/program.h"

namespace spmd::runtime {

// All elements of the input `index` lie in [0, size).
struct IndexBound {
  program::ValueId index;
  int64_t size;
};

// What keeps the call from failing on values; none where an index is no input (or a part or a
// reshaping of one), or the op has other reasons to fail. `maker`: by value, the instruction that
// makes it, -1: none.
std::optional<IndexBound> FindIndexBound(const program::Program& program,
                                         const program::Instruction& call,
                                         absl::Span<const int> maker);

// Whether the bound holds, of the input's tiles on the host.
bool Holds(const IndexBound& bound, absl::Span<const at::Tensor> tiles);

}  // namespace spmd::runtime
