// SPDX-License-Identifier: Apache-2.0
// Ops that put tensors side by side or move what they hold along a dimension: concatenation,
// padding, reversal, rotation, sliding windows. As with slices, operands are needed as windows:
//
//   cat of 4 and 6, cut in two      shard [0:5) needs [0:4) and [0:1), shard [5:10) [4:4) and [1:6)
//   flip of 10, cut in two          shard [0:5) needs [5:10)
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> CatFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> CatTypes(const OpCall& call);

// stack: the new dimension is whole; where it is cut, a cat of unsqueezed operands.
absl::StatusOr<OpFactors> StackFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> StackTypes(const OpCall& call);
absl::StatusOr<std::vector<ir::ValueId>> StackAsCat(Builder& b, const ir::Graph& from,
                                                    const ir::Node& node,
                                                    absl::Span<const ir::ValueId> operands);

absl::StatusOr<OpFactors> PadFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> PadTypes(const OpCall& call);
Attributes LocalPad(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
bool PadsWithZero(const OpCall& call);
// With a number that is passed at run time, which no window is filled with: zeros, and a choice by
// the numbers of the elements.
absl::StatusOr<std::vector<ir::ValueId>> PadThenFill(Builder& b, const ir::Graph& from,
                                                     const ir::Node& node,
                                                     absl::Span<const ir::ValueId> operands);

absl::StatusOr<OpFactors> FlipFactors(const OpCall& call);

// roll: rolled dimensions are whole; where they are cut, a cat of two slices.
absl::StatusOr<OpFactors> RollFactors(const OpCall& call);
absl::StatusOr<std::vector<ir::ValueId>> RollAsShifts(Builder& b, const ir::Graph& from,
                                                      const ir::Node& node,
                                                      absl::Span<const ir::ValueId> operands);

absl::StatusOr<OpFactors> UnfoldFactors(const OpCall& call);
absl::StatusOr<OpFactors> UnfoldBackwardFactors(const OpCall& call);

// tril, triu: every dimension passes, the diagonal moves with the tile.
Attributes LocalTriangle(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

}  // namespace spmd::rules
