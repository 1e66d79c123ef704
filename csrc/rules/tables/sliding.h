// SPDX-License-Identifier: Apache-2.0
// Sliding windows: output i of a convolution or a pool looks at inputs
//
//   i*stride - padding + k*dilation,  0 <= k < kernel
//
// so outputs [a,b) need inputs [a*stride - padding, (b-1)*stride - padding + span), and inputs
// [a,b) are looked at by outputs [⌈(a+padding-span+1)/stride⌉, ⌊(b-1+padding)/stride⌋ + 1), where
// span = (kernel-1)*dilation + 1. Both may reach outside; what is there reads a fill.
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

  int64_t span() const { return (kernel - 1) * dilation + 1; }
  // Output i is a function of input i.
  bool IsPointwise() const { return span() == 1 && stride == 1 && padding == 0; }
  // Outputs look at disjoint, adjacent inputs that cover `extent` exactly: input is (output
  // kernel).
  bool Tiles(int64_t extent) const {
    return kernel == stride && padding == 0 && dilation == 1 && extent % kernel == 0;
  }
  int64_t OutputSize(int64_t input) const {
    return FloorDiv(input + 2 * padding - span(), stride) + 1;
  }

  ExprInterval InputsOf(const ExprInterval& outputs) const;
  // Never empty: its first output begins at or before the first input, so that the inputs can be
  // cut out of what those outputs cover at a distance that is not negative.
  ExprInterval OutputsOf(const ExprInterval& inputs) const;
  // Where `inputs` begin within what OutputsOf(inputs) cover: the first of those begins at 0.
  Expr OffsetWithin(const ExprInterval& inputs) const;
};

// Entry i of a list attribute in which one entry stands for all; `fallback` for an empty list.
int64_t SpatialEntry(const OpCall& call, absl::string_view name, int i, int64_t fallback);

// Spatial dimension i of a pool, from "kernel_size", "stride" (the kernel's where empty),
// "padding", "dilation".
Sliding PoolOf(const OpCall& call, int i);
// Those lists with an entry for each of `rank` spatial dimensions.
Attributes PoolLists(const OpCall& call, int rank);

// "padding" with 0 where operand k (its spatial dimensions are the last `rank`) comes as a window.
Attr LocalPadding(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int operand,
                  int rank);

// Passes all dimensions but the last `rank` through all tensors; returns how many those are.
int PassLeading(CallFactors& f, const OpCall& call, int rank);

// A FactorsFn, LocalFn or DecomposeFn of a function that is told the number of spatial dimensions.
template <int Rank, absl::StatusOr<OpFactors> (*F)(const OpCall&, int)>
absl::StatusOr<OpFactors> OfRank(const OpCall& call) {
  return F(call, Rank);
}
template <int Rank, Attributes (*F)(const OpCall&, const OpFactors&, const CutFactors&, int)>
Attributes LocalOfRank(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return F(call, factors, cut, Rank);
}
using RankedDecomposeFn = absl::StatusOr<std::vector<ir::ValueId>> (*)(
    Builder&, const OpCall&, absl::Span<const ir::ValueId>, int);
template <int Rank, RankedDecomposeFn F>
absl::StatusOr<std::vector<ir::ValueId>> DecomposeOfRank(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node,
                                                         absl::Span<const ir::ValueId> operands) {
  return F(b, OpCall::Of(from, node), operands, Rank);
}

// All dimensions but the last `rank` pass; those are whole.
absl::StatusOr<OpFactors> SpatialWholeFactors(const OpCall& call, int rank);
// The last `rank` sizes, and a type with others.
std::vector<int64_t> SpatialSizes(const Dims& dims, int rank);
TensorType WithSpatialSizes(TensorType type, const std::vector<int64_t>& sizes);
// Those of the tile of an operand or result: expressions where it is cut.
Attr LocalSpatialSizes(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                       TensorRef tensor, int rank);
// "output_size" with the sizes of a tile's last `rank` dimensions.
Attributes LocalOutputSize(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                           int rank);

}  // namespace spmd::rules
