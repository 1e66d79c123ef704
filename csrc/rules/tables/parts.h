// SPDX-License-Identifier: Apache-2.0
// Indexing along a sharded dimension: every device reads or writes the elements that it holds and
// skips the others. Reading gives partial sums, with zeros for elements held elsewhere:
//
//   spmd::index_part(x{data}, i) -> unreduced(sum){data}
//   spmd::scatter_part(x{data}, i, src) -> {data}     no communication; i and src are replicated
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {

#define SPMD_DECOMPOSITION(name) \
  ValuesOrStatus name(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands)

// Ops that read.
SPMD_DECOMPOSITION(GatherByPart);
SPMD_DECOMPOSITION(IndexByPart);
SPMD_DECOMPOSITION(IndexSelectByPart);
SPMD_DECOMPOSITION(TakeByPart);
// Ops that read one index: select.int, and slice.Tensor of length one.
SPMD_DECOMPOSITION(SelectByPart);
SPMD_DECOMPOSITION(SliceOneByPart);
// Slices that start where a number at run time says.
SPMD_DECOMPOSITION(SliceStartByPart);
SPMD_DECOMPOSITION(SliceStartScatterByPart);
// Ops that write.
SPMD_DECOMPOSITION(IndexAddByPart);
SPMD_DECOMPOSITION(IndexPutByPart);
SPMD_DECOMPOSITION(IndexWriteByPart);  // index_copy, index_fill, index_reduce
SPMD_DECOMPOSITION(PutByPart);
SPMD_DECOMPOSITION(ScatterAddByPart);
SPMD_DECOMPOSITION(ScatterByPart);  // all other forms of scatter

#undef SPMD_DECOMPOSITION

}  // namespace spmd::rules
