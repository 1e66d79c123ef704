// SPDX-License-Identifier: Apache-2.0
// Grouped matrix products: one product per group (the experts of a mixture), where the groups
// divide a dimension of a matrix at offsets that are data. offsets [G] holds the ends of the
// groups; group g has the indices [offsets[g-1], offsets[g]):
//
//   self [t, k], mat2 [g, k, n]   -> [t, n]      divides rows t: tokens, sorted by expert
//   self [m, t], mat2 [t, n]      -> [g, m, n]   divides the contracted t: gradients of experts
//   self [g, m, k], mat2 [k, t]   -> [m, t]      divides columns t
//   self [g, m, k], mat2 [g, k, n] -> [g, m, n]  no offsets: a batched product
//
// Every factor can be sharded. Over experts, a shard computes the tokens of its own experts and
// zeros for the others, which gives a partial sum. Over tokens, a shard finds the ends of the
// groups within its own interval. Offsets are whole; indices after the last end give zeros.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::_grouped_mm(self, mat2, offs?, bias?), written as spmd::grouped_mm, or as aten::bmm if
// there are no offsets.
absl::StatusOr<std::vector<ir::ValueId>> GroupedMatmul(Builder& b, const ir::Graph& from,
                                                       const ir::Node& node, Operands operands);
// aten::_scaled_grouped_mm(self, mat2, scale_a, scale_b, offs?, …): 8-bit operands with a float32
// scale for each row of self and each column of mat2, and per group where the row or column does
// not determine the group. The operands are widened to float32 and the result is rounded once.
absl::StatusOr<std::vector<ir::ValueId>> ScaledGroupedMatmul(Builder& b, const ir::Graph& from,
                                                             const ir::Node& node,
                                                             Operands operands);

// spmd::grouped_mm(self, mat2, offsets; first_group, num_groups, first_index).
absl::StatusOr<OpFactors> GroupedMatmulFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> GroupedMatmulTypes(const OpCall& call);
Attributes LocalGroupedMatmul(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// aten::_scaled_mm(self [m, k], mat2 [k, n], scale_a, scale_b, bias?, scale_result?).
absl::StatusOr<OpFactors> ScaledMatmulFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ScaledMatmulTypes(const OpCall& call);

}  // namespace spmd::rules
