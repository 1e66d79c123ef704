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

// The rules of gather_part, scatter_part, index_write_part, index_part, index_put_part.
std::vector<Rule> PartRules();

#define SPMD_DECOMPOSITION(name) \
  ValuesOrStatus name(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands)

// gather, index_select, index.Tensor, take.
SPMD_DECOMPOSITION(ReadByPart);
// Ops that read one index: select.int, and slice.Tensor of length one.
SPMD_DECOMPOSITION(SelectByPart);
SPMD_DECOMPOSITION(SliceOneByPart);
// All forms of scatter, index_add, index_copy, index_fill, index_reduce, index_put, put.
SPMD_DECOMPOSITION(WriteByPart);

#undef SPMD_DECOMPOSITION

}  // namespace spmd::rules
