// SPDX-License-Identifier: Apache-2.0
// Indices that enumerate a dimension: 0, 1, … n-1 for a dimension of n. Such a dimension acts as a
// batch dimension, whatever the other indices are: a shard reads only its own part.
//
//   x[arange(B)[:, None], p]      p[b,k] reads rows of x[b]: b is sharded without communication
//
// The op is rewritten in its partial form (parts.h) with an attribute `batch`: by dimension of
// self, the dimension of the broadcast indices that enumerates it, or -1.
#pragma once

#include <optional>

#include "csrc/rules/rule.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {

// Describes a value that is 0, 1, … count-1 along dimension `dim` and constant along all others.
struct Numbering {
  int dim;
  int64_t count;
};
// Recognizes the results of spmd::iota, and follows them through casts between integers and ops
// that only move elements.
std::optional<Numbering> NumberingOf(const ir::Graph& graph, ir::ValueId v);

// index and index_put with a batch dimension. They return no values where no index enumerates a
// dimension.
ValuesOrStatus IndexByBatch(Builder& b, const ir::Graph& from, const ir::Node& node,
                            Operands operands);
ValuesOrStatus IndexPutByBatch(Builder& b, const ir::Graph& from, const ir::Node& node,
                               Operands operands);

}  // namespace spmd::rules
