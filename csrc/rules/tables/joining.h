// SPDX-License-Identifier: Apache-2.0
// Ops that concatenate tensors or move elements along a dimension: concatenation, padding,
// reversal, rotation, sliding windows. As with slices, operands are read through windows:
//
//   cat of 4 and 6, in two shards   shard [0:5) needs [0:4) and [0:1), shard [5:10) [4:4) and [1:6)
//   flip of 10, in two shards       shard [0:5) needs [5:10)
//   roll of 10 by 2, in two shards  shard [0:5) needs [8:10) and [0:3)
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> CatFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> CatTypes(const OpCall& call);

// stack: the new dimension is whole; to shard it, the op becomes a cat of unsqueezed operands.
absl::StatusOr<OpFactors> StackFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> StackTypes(const OpCall& call);
absl::StatusOr<std::vector<ir::ValueId>> StackAsCat(Builder& b, const ir::Graph& from,
                                                    const ir::Node& node, Operands operands);

absl::StatusOr<OpFactors> PadFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> PadTypes(const OpCall& call);
Attributes LocalPad(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
bool PadsWithZero(const OpCall& call);
// Padding with a run-time number, which cannot be the fill of a window: pads with zeros, then
// selects the number where the index is outside the operand.
absl::StatusOr<std::vector<ir::ValueId>> PadThenFill(Builder& b, const ir::Graph& from,
                                                     const ir::Node& node, Operands operands);

absl::StatusOr<OpFactors> FlipFactors(const OpCall& call);

// spmd::roll_start(x, x): a roll by a number that is known at run time, by at most `reach` indices
// and to one side. The second operand is read through a window of what lies next to a shard.
absl::StatusOr<OpFactors> RollStartFactors(const OpCall& call);
// roll: rolled dimensions are read in another order, which one exchange brings about. Without dims
// it rolls the elements in row-major order, as a vector.
absl::StatusOr<OpFactors> RollFactors(const OpCall& call);
Attributes LocalRoll(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
absl::StatusOr<std::vector<ir::ValueId>> RollAsVector(Builder& b, const ir::Graph& from,
                                                      const ir::Node& node, Operands operands);

// reorder: result index i along "dim" is index[i] of the operand, zeros if that is -1. An empty
// list leaves all as it is.
absl::StatusOr<OpFactors> ReorderFactors(const OpCall& call);
Attributes LocalReorder(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

absl::StatusOr<OpFactors> UnfoldFactors(const OpCall& call);
absl::StatusOr<OpFactors> UnfoldBackwardFactors(const OpCall& call);

// tril, triu: every dimension passes; the local diagonal depends on the tile's position.
Attributes LocalTriangle(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

}  // namespace spmd::rules
