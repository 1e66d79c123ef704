// SPDX-License-Identifier: Apache-2.0
// Embedding: rows of a table by index. A table cut by rows is read everywhere, each shard giving
// zeros for rows it does not hold; the sum over shards is the result.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::embedding(weight, indices) and its gradient, as spmd::embedding and
// spmd::embedding_dweight.
absl::StatusOr<std::vector<ir::ValueId>> EmbeddingByRows(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node,
                                                         absl::Span<const ir::ValueId> operands);
absl::StatusOr<std::vector<ir::ValueId>> EmbeddingBackwardByRows(
    Builder& b, const ir::Graph& from, const ir::Node& node,
    absl::Span<const ir::ValueId> operands);

absl::StatusOr<std::vector<TensorType>> EmbeddingTypes(const OpCall& call);
Attributes LocalEmbedding(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
absl::StatusOr<std::vector<TensorType>> EmbeddingDWeightTypes(const OpCall& call);
Attributes LocalEmbeddingDWeight(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut);

}  // namespace spmd::rules
