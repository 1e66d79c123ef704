// SPDX-License-Identifier: Apache-2.0
// Indices that number a dimension: 0, 1, … n-1 for a dimension of n. Such a dimension is one of a
// batch, whatever the other indices ask for: shards of it look at their own part only.
//
//   x[arange(B)[:, None], p]      p[b,k] asks for rows of x[b]: b is cut without communication
//
// The op becomes its form in parts (parts.h) with an attribute `batch`: by dimension of self, the
// dimension of the broadcast indices that numbers it, or -1.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// A value that is 0, 1, … along one dimension and the same along all others.
struct Numbering {
  int dim;
  int64_t count;
};
// Made by spmd::iota and taken along by casts between integers and by ops that only move elements.
std::optional<Numbering> NumberingOf(const ir::Graph& graph, ir::ValueId v);

// How an op is written with a batch dimension; null for ops that take no indices. It gives no
// values where no index is a numbering.
DecomposeFn BatchFormOf(absl::string_view op);

}  // namespace spmd::rules
