// SPDX-License-Identifier: Apache-2.0
// Grouped matrix products: one product per group (the experts of a mixture), where the groups
// divide a dimension of a matrix at offsets that are data. With offsets [G] of ends, group g being
// the indices [offsets[g-1], offsets[g]):
//
//   self [t, k], mat2 [g, k, n]   -> [t, n]      rows t are divided: tokens, sorted by expert
//   self [m, t], mat2 [t, n]      -> [g, m, n]   the contracted t is divided: gradients of experts
//   self [g, m, k], mat2 [k, t]   -> [m, t]      columns t are divided
//   self [g, m, k], mat2 [g, k, n] -> [g, m, n]  no offsets: a product of batches
//
// Every factor can be cut. Experts: a shard computes the tokens of its own experts and zeros for
// the others, so that its result is a partial sum. Tokens: a shard finds the ends of groups in its
// own interval. Offsets are held whole; indices after the last end give zeros.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::_grouped_mm(self, mat2, offs?, bias?) as spmd::grouped_mm, or as aten::bmm where there are
// no offsets.
absl::StatusOr<std::vector<ir::ValueId>> GroupedMatmul(Builder& b, const ir::Graph& from,
                                                       const ir::Node& node,
                                                       absl::Span<const ir::ValueId> operands);
// aten::_scaled_grouped_mm(self, mat2, scale_a, scale_b, offs?, …): operands in eight bits with a
// scale in float32 for each row of self and each column of mat2, per group where the group is not
// told by the row. The operands are widened to float32 and the result is rounded once.
absl::StatusOr<std::vector<ir::ValueId>> ScaledGroupedMatmul(
    Builder& b, const ir::Graph& from, const ir::Node& node,
    absl::Span<const ir::ValueId> operands);

// spmd::grouped_mm(self, mat2, offsets; first_group, num_groups, first_index).
absl::StatusOr<OpFactors> GroupedMatmulFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> GroupedMatmulTypes(const OpCall& call);
Attributes LocalGroupedMatmul(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// aten::_scaled_mm(self [m, k], mat2 [k, n], scale_a, scale_b, bias?, scale_result?).
absl::StatusOr<OpFactors> ScaledMatmulFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ScaledMatmulTypes(const OpCall& call);

}  // namespace spmd::rules
