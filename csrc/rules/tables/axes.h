// SPDX-License-Identifier: Apache-2.0
// Factors of ops that move, drop, add or repeat whole dimensions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {

// Gives, for each dimension of the result, the dimension of operand 0 it comes from, or kRepeated
// or kMade.
using SourceFn = std::vector<int> (*)(const OpCall&);

std::vector<int> PermuteSource(const OpCall& call);
std::vector<int> TransposeSource(const OpCall& call);  // "dim0", "dim1"
std::vector<int> TSource(const OpCall& call);
std::vector<int> SqueezeSource(const OpCall& call);
std::vector<int> SqueezeDimSource(const OpCall& call);
std::vector<int> SqueezeDimsSource(const OpCall& call);
std::vector<int> UnsqueezeSource(const OpCall& call);
std::vector<int> ExpandSource(const OpCall& call);
std::vector<int> SelectSource(const OpCall& call);
std::vector<int> DiagonalSource(const OpCall& call);
std::vector<int> DiagEmbedSource(const OpCall& call);
std::vector<int> ViewAsRealSource(const OpCall& call);
std::vector<int> ViewAsComplexSource(const OpCall& call);

template <SourceFn Source>
absl::StatusOr<OpFactors> Mapped(const OpCall& call) {
  return MappedFactors(call, Source(call));
}
// The type for ops that add only dimensions of size 1.
template <SourceFn Source>
absl::StatusOr<std::vector<TensorType>> MappedTypes(const OpCall& call) {
  return std::vector<TensorType>{
      {call.operand(0).dtype, MappedDims(call.operand(0).dims, Source(call))}};
}

absl::StatusOr<std::vector<TensorType>> ExpandTypes(const OpCall& call);

// repeat: a dimension of the result is (r n), r copies of the operand's n indices.
absl::StatusOr<OpFactors> RepeatFactors(const OpCall& call);
Attributes LocalRepeats(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// diagonal_backward, diagonal_scatter: all dimensions but "dim1" and "dim2" pass.
absl::StatusOr<OpFactors> DiagonalBackwardFactors(const OpCall& call);
absl::StatusOr<OpFactors> DiagonalScatterFactors(const OpCall& call);

}  // namespace spmd::rules
