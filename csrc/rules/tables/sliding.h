// SPDX-License-Identifier: Apache-2.0
// Sliding windows: output i of a convolution or a pool reads the inputs
//
//   i*stride - padding + k*dilation,  0 <= k < kernel
//
// so outputs [a,b) need inputs [a*stride - padding, (b-1)*stride - padding + span), and inputs
// [a,b) are read by outputs [⌈(a+padding-span+1)/stride⌉, ⌊(b-1+padding)/stride⌋ + 1), where span =
// (kernel-1)*dilation + 1. Both intervals may reach outside, where a fill is read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {

struct Sliding {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;

  int64_t span() const { return CheckedAdd(CheckedMul(CheckedSub(kernel, 1), dilation), 1); }
  // True if output i is a function of input i alone.
  bool IsPointwise() const { return span() == 1 && stride == 1 && padding == 0; }
  // True if the windows are disjoint, adjacent and cover `extent` exactly, so that the input is
  // (output kernel).
  bool Tiles(int64_t extent) const {
    return kernel > 0 && kernel == stride && padding == 0 && dilation == 1 && extent % kernel == 0;
  }
  int64_t OutputSize(int64_t input) const {
    return CheckedAdd(
        FloorDiv(CheckedSub(CheckedAdd(input, CheckedMul(2, padding)), span()), stride), 1);
  }
  // The fewest inputs that give so many outputs.
  int64_t InputSize(int64_t output) const {
    return CheckedAdd(CheckedSub(CheckedMul(CheckedSub(output, 1), stride), CheckedMul(2, padding)),
                      span());
  }

  ExprInterval InputsOf(const ExprInterval& outputs) const;
  // Never empty. The window of the first of these outputs begins at or before the first input, so
  // that OffsetWithin is not negative.
  ExprInterval OutputsOf(const ExprInterval& inputs) const;
  // Where `inputs` begin, counted from the first input that OutputsOf(inputs) read.
  Expr OffsetWithin(const ExprInterval& inputs) const;
};

// Entry i of a list attribute; a single entry stands for every dimension. `fallback` for an empty
// list.
int64_t SpatialEntry(const OpCall& call, absl::string_view name, int i, int64_t fallback);

// Spatial dimension i of a pool, by "kernel_size", "stride" (the kernel's size if empty),
// "padding", "dilation".
Sliding PoolOf(const OpCall& call, int i);
// The same lists, each with one entry per spatial dimension.
Attributes PoolLists(const OpCall& call, int rank);

// "padding", with 0 for each of the last `rank` dimensions that operand k reads through a window.
Attr LocalPadding(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int operand,
                  int rank);

// Passes all dimensions but the last `rank` through all tensors; returns how many these are.
int PassLeading(CallFactors& f, const OpCall& call, int rank);

// Makes a FactorsFn, LocalFn or DecomposeFn from a function of the number of spatial dimensions.
template <int Rank, absl::StatusOr<OpFactors> (*F)(const OpCall&, int)>
absl::StatusOr<OpFactors> OfRank(const OpCall& call) {
  return F(call, Rank);
}
template <int Rank, Attributes (*F)(const OpCall&, const OpFactors&, const CutFactors&, int)>
Attributes LocalOfRank(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return F(call, factors, cut, Rank);
}
using RankedDecomposeFn = absl::StatusOr<std::vector<ir::ValueId>> (*)(Builder&, const OpCall&,
                                                                       Operands, int);
template <int Rank, RankedDecomposeFn F>
absl::StatusOr<std::vector<ir::ValueId>> DecomposeOfRank(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node, Operands operands) {
  return F(b, OpCall::Of(from, node), operands, Rank);
}

// All dimensions but the last `rank` pass; the last are whole.
absl::StatusOr<OpFactors> SpatialWholeFactors(const OpCall& call, int rank);
// The last `rank` sizes, and `type` with other sizes there.
std::vector<int64_t> SpatialSizes(const Dims& dims, int rank);
TensorType WithSpatialSizes(TensorType type, const std::vector<int64_t>& sizes);
// The spatial sizes of a tile of an operand or result, as expressions where they are sharded.
Attr LocalSpatialSizes(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                       TensorRef tensor, int rank);
// The attributes with "output_size" set to the last `rank` sizes of a tile of the result.
Attributes LocalOutputSize(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                           int rank);

}  // namespace spmd::rules
