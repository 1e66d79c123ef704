// SPDX-License-Identifier: Apache-2.0
// Indexing along a cut dimension, in parts: every device reads or writes what it holds and passes
// over the rest. Reading gives terms of a sum, zeros for what is elsewhere:
//
//   spmd::index_part(x{data}, i) -> unreduced(sum){data}
//   spmd::scatter_part(x{data}, i, src) -> {data}     no communication, i and src whole
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {

// gather_part, scatter_part, index_write_part, index_part, index_put_part.
std::vector<Rule> PartRules();

#define SPMD_DECOMPOSITION(name) \
  ValuesOrStatus name(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands)

// Of gather, index_select, index.Tensor, take.
SPMD_DECOMPOSITION(ReadByPart);
// Of one index: select.int, and slice.Tensor of length one.
SPMD_DECOMPOSITION(SelectByPart);
SPMD_DECOMPOSITION(SliceOneByPart);
// Of scatter (all of them), index_add, index_copy, index_fill, index_reduce, index_put, put.
SPMD_DECOMPOSITION(WriteByPart);

#undef SPMD_DECOMPOSITION

}  // namespace spmd::rules
