// SPDX-License-Identifier: Apache-2.0
// Embedding: rows of a table by index. Where the table is sharded over its rows, every shard looks
// up all indices and returns zeros for rows that it does not hold; the sum over shards is the
// result.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// aten::embedding(weight, indices) and its gradient, written as spmd::embedding and
// spmd::embedding_dweight.
absl::StatusOr<std::vector<ir::ValueId>> EmbeddingByRows(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node, Operands operands);
absl::StatusOr<std::vector<ir::ValueId>> EmbeddingBackwardByRows(Builder& b, const ir::Graph& from,
                                                                 const ir::Node& node,
                                                                 Operands operands);

absl::StatusOr<std::vector<TensorType>> EmbeddingTypes(const OpCall& call);
Attributes LocalEmbedding(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
absl::StatusOr<std::vector<TensorType>> EmbeddingDWeightTypes(const OpCall& call);
Attributes LocalEmbeddingDWeight(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut);

}  // namespace spmd::rules
