// SPDX-License-Identifier: Apache-2.0
// Checks indices that were given to the program as inputs: whether a call that refuses indices out
// of range will fail is then known before anything has run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "csrc/program/def_use.h"
#include "csrc/program/program.h"

namespace spmd::runtime {

// The condition that all elements of the input `index` lie in [0, size).
struct IndexBound {
  program::ValueId index;
  int64_t size;
};

// The bound under which `call` cannot fail on values. nullopt if its index is not an input (or a
// part or a reshaping of one), or if the op can fail for other reasons. `facts` are the program's.
std::optional<IndexBound> FindIndexBound(const program::Program& program,
                                         const program::Instruction& call,
                                         const program::DefUse& facts);

// Whether the bound holds for the input's tiles, or need not be known: a kernel of CUDA that finds
// an index out of range ends the context, with all tensors in it, and reading tiles would wait for
// them.
bool Holds(const IndexBound& bound, absl::Span<const at::Tensor> tiles);

}  // namespace spmd::runtime
