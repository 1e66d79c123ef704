// SPDX-License-Identifier: Apache-2.0
// Reshapes: dimensions are split and merged, the order of elements is kept.
//
// Both sides are walked major first. A factor ends wherever the next boundary of one side divides
// what is left of the other. Where neither divides, the common divisor is a factor, and the rest is
// whole up to the next place where both sides have a boundary:
//
//   [4,6] -> [24]        a b -> (a b)           merge
//   [24] -> [4,6]        (a b) -> a b           split
//   [4,6] -> [8,3]       a (b c) -> (a b) c     split and merge in one op, a=4 b=2 c=3
//   [6,4] -> [4,6]       (a [b]) [c] -> (a [d]) [e], a=2: rows have at most two shards
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// view: from the dims of operand 0 to those of result 0.
absl::StatusOr<OpFactors> ReshapeFactors(const OpCall& call);
// By the attribute "size", in which one entry may be -1.
absl::StatusOr<std::vector<TensorType>> ReshapeTypes(const OpCall& call);

// view.dtype: the last dimension is scaled where the element types differ in size.
absl::StatusOr<OpFactors> BitcastFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> BitcastTypes(const OpCall& call);

}  // namespace spmd::rules
