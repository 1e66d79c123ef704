// SPDX-License-Identifier: Apache-2.0
// Decompositions: functions written in core ops, for shardings of dimensions that an op needs
// whole. Counts (the N of a mean) are global sizes, since decompositions see the unsharded graph.
// What PyTorch's kernels compute in f32 for f16 and bf16 operands is computed in f32 here, too.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

using Values = std::vector<ir::ValueId>;
using ValuesOrStatus = absl::StatusOr<Values>;

// How a loss is reduced, as PyTorch numbers it (at::Reduction).
struct LossReduction {
  static constexpr int64_t kNone = 0, kMean = 1;
};

// f32 for types that PyTorch's kernels compute in f32, else the type itself.
DType ComputedIn(DType dtype);
// Casts f16 and bf16 to f32; returns other values as they are.
ir::ValueId Upcast(Builder& b, ir::ValueId v);
// Casts `values` to the element types of the node's results. A result that an output mask leaves
// out has no value.
Values AsResultsOf(Builder& b, const ir::Graph& from, const ir::Node& node, Values values);
// The attribute `name`, a number that may be passed at run time; `fallback` if it is absent or
// none.
Attr NumberOr(const ir::Node& node, absl::string_view name, double fallback);
// The number, if it is known at compile time.
std::optional<double> Known(const Attr& number);
// The value of an optional operand, or kNoValue.
ir::ValueId OptionalOperand(Operands operands, size_t i);
// A result of size 0, without elements.
ir::ValueId EmptyResult(Builder& b, const TensorType& type);
// sum(v, dims) / count. Half types are summed in f32, which is then the result's type.
ir::ValueId MeanOf(Builder& b, ir::ValueId v, std::vector<int64_t> dims, int64_t count,
                   bool keepdim);

// The p-norm over `dims`. Requires: v is real or complex floating.
ir::ValueId NormOf(Builder& b, ir::ValueId v, const Attr& p, const std::vector<int64_t>& dims,
                   bool keepdim);

#define SPMD_DECOMPOSITION(name) \
  ValuesOrStatus name(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands)

// Reductions.
SPMD_DECOMPOSITION(DecomposeMean);
SPMD_DECOMPOSITION(DecomposeVariance);   // var, var_mean
SPMD_DECOMPOSITION(DecomposeDeviation);  // std, std_mean
SPMD_DECOMPOSITION(DecomposeNorm);       // linalg_vector_norm and norm
SPMD_DECOMPOSITION(DecomposeLogSumExp);
SPMD_DECOMPOSITION(DecomposeArgMax);  // argmax, max.dim
SPMD_DECOMPOSITION(DecomposeArgMin);  // argmin, min.dim
SPMD_DECOMPOSITION(DecomposeAMinMax);
SPMD_DECOMPOSITION(DecomposeSoftmax);
SPMD_DECOMPOSITION(DecomposeSafeSoftmax);
SPMD_DECOMPOSITION(DecomposeLogSoftmax);
SPMD_DECOMPOSITION(DecomposeSoftmaxBackward);
SPMD_DECOMPOSITION(DecomposeLogSoftmaxBackward);
SPMD_DECOMPOSITION(DecomposeGlu);
SPMD_DECOMPOSITION(DecomposeGluBackward);
SPMD_DECOMPOSITION(DecomposeCumsum);
SPMD_DECOMPOSITION(DecomposeCumprod);
SPMD_DECOMPOSITION(DecomposeTopK);
SPMD_DECOMPOSITION(DecomposeDist);
// Diagonals.
SPMD_DECOMPOSITION(DecomposeDiagonal);
SPMD_DECOMPOSITION(DecomposeDiagEmbed);  // and diagonal_backward
SPMD_DECOMPOSITION(DecomposeDiagonalScatter);
SPMD_DECOMPOSITION(DecomposeTrace);
// Ops that move elements.
SPMD_DECOMPOSITION(DecomposeBlockDiag);
SPMD_DECOMPOSITION(DecomposeChannelShuffle);
SPMD_DECOMPOSITION(DecomposeNarrowCopy);
SPMD_DECOMPOSITION(DecomposeRot90);
SPMD_DECOMPOSITION(DecomposeSplit);  // split_with_sizes_copy, unsafe_split, unbind_copy
// Normalization.
SPMD_DECOMPOSITION(DecomposeLayerNorm);
SPMD_DECOMPOSITION(DecomposeLayerNormBackward);
SPMD_DECOMPOSITION(DecomposeGroupNorm);
SPMD_DECOMPOSITION(DecomposeGroupNormBackward);
SPMD_DECOMPOSITION(DecomposeBatchNorm);
SPMD_DECOMPOSITION(DecomposeBatchNormBackward);
SPMD_DECOMPOSITION(DecomposeWeightNorm);
SPMD_DECOMPOSITION(DecomposeWeightNormBackward);
// Sampling.
SPMD_DECOMPOSITION(DecomposeAffineGrid);
// Attention.
SPMD_DECOMPOSITION(DecomposeAttention);
SPMD_DECOMPOSITION(DecomposeAttentionBackward);
// Optimizers.
SPMD_DECOMPOSITION(DecomposeAdam);
SPMD_DECOMPOSITION(DecomposeAdamW);
SPMD_DECOMPOSITION(DecomposeSgd);
SPMD_DECOMPOSITION(DecomposeAdagrad);
SPMD_DECOMPOSITION(DecomposeUnscale);

#undef SPMD_DECOMPOSITION

}  // namespace spmd::rules
