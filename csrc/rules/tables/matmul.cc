// SPDX-License-Identifier: Apache-2.0
// Products of matrices, and attention.
#include <algorithm>
#include <array>

#include "csrc/rules/einsum.h"
#include "csrc/rules/families.h"
#include "csrc/rules/tables/attention.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/grouped_matmul.h"
#include "csrc/rules/tables/rings.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

constexpr Row Product(absl::string_view op, absl::string_view text) {
  return Einsum(op, text).Types(EinsumTypes).Flops(2).CannotFail();
}

// _trilinear multiplies three tensors point by point, each of which lacks the dimensions in its
// "expand", and sums over those in "sumdim".
absl::StatusOr<OpFactors> TrilinearFactors(const OpCall& call) {
  auto has = [&](const char* list, int64_t d) {
    const std::vector<int64_t>& dims = call.attrs().GetInts(list);
    return std::count(dims.begin(), dims.end(), d) > 0;
  };
  constexpr std::array<const char*, 3> kExpand = {"expand1", "expand2", "expand3"};
  CallFactors f(call);
  std::array<int, 3> next = {0, 0, 0};
  const int rank =
      call.operand(0).rank() + static_cast<int>(call.attrs().GetInts("expand1").size());
  for (int d = 0, result = 0; d < rank; ++d) {
    int factor = -1;
    for (int k = 0; k < 3; ++k) {
      if (has(kExpand[k], d)) continue;
      const int64_t size = call.operand(k).dims[next[k]];
      if (factor < 0) factor = f.Add(size);
      f.OverOperand(k, next[k]++, factor);
    }
    if (!has("sumdim", d)) f.OverResult(result++, factor);
  }
  return f.Take();
}

// Empty operands run whole: the gradient then has the sizes of its own operand, not those of the
// broadcast.
absl::StatusOr<OpFactors> CdistBackwardFactors(const OpCall& call) {
  for (const TensorType* type : call.operands) {
    if (type->NumElements() == 0) return WholeFactors(call);
  }
  SPMD_ASSIGN_OR_RETURN(const EinsumPattern pattern,
                        ParseEinsum("... p r, ... p m, ... r m, ... p r -> ... p m"));
  return EinsumFactors(pattern, call);
}

constexpr Row ScaledMatmul() {
  return Computed("aten::_scaled_mm", ScaledMatmulFactors)
      .Types(ScaledMatmulTypes)
      .Flops(2)
      .AddedOnce({4});
}

constexpr auto kMatmulRows = Rows(
    Product("aten::addbmm", "+m n, b m k, b k n -> m n").Each({1, 2}),
    Product("aten::addmm", "+m n, m k, k n -> m n").Each({1, 2}),
    Product("aten::addmv", "+m, m k, k -> m").Each({1, 2}),
    Product("aten::addr", "+m n, m, n -> m n").Each({1, 2}),
    Product("aten::baddbmm", "+b m n, b m k, b k n -> b m n").Each({1, 2}),
    Product("aten::bmm", "b m k, b k n -> b m n")
        .Each({0, 1})
        .With(&OpFacts::dims, DimsUse::kBatches)
        .With(&OpFacts::batched, "aten::matmul")
        .With(&OpFacts::for_one, "aten::mm"),
    Product("aten::dot", "k, k -> ()").Each({0, 1}),
    Product("aten::linear", "... k, n k, +n? -> ... n")
        .Each({0, 1})
        .With(&OpFacts::product, MatrixProduct{.right_transposed = true}),
    Product("aten::matmul", "... m k, ... k n -> ... m n")
        .Each({0, 1})
        .With(&OpFacts::dims, DimsUse::kForEach)
        .With(&OpFacts::for_one, "aten::mm"),
    Product("aten::mm", "m k, k n -> m n").Each({0, 1}).With(&OpFacts::product, MatrixProduct{}),
    Product("aten::mv", "m k, k -> m").Each({0, 1}),
    Product("aten::vdot", "k, k -> ()").Each({0, 1}),
    Computed("aten::_cdist_backward", CdistBackwardFactors).Each({0}).Flops(4),
    Einsum("aten::_cdist_forward", "... p [m], ... r [m] -> ... p r").Flops(3),
    Einsum("aten::_euclidean_dist", "... p [m], ... r [m] -> ... p r").Flops(3).CannotFail(),
    Rewritten("aten::_grouped_mm", GroupedMatmul).CannotFail(),
    Einsum("aten::_int_mm", "m k, k n -> m n").Flops(2).CannotFail(),
    // Distances within one set of points, whose kernels read it as if it were contiguous.
    Computed("aten::_pdist_backward", NoFactors)
        .CannotFail()
        .With(&OpFacts::needs_contiguous, true),
    Computed("aten::_pdist_forward", NoFactors).CannotFail().With(&OpFacts::needs_contiguous, true),
    Rewritten("aten::_scaled_grouped_mm", ScaledGroupedMatmul).CannotFail(),
    ScaledMatmul().CannotFail(),
    Einsum("aten::_weight_int8pack_mm", "m k, n k, n -> m n").Each({0}).Flops(2).CannotFail(),
    Computed("aten::_trilinear", TrilinearFactors).Each({0, 1, 2}).Flops(3).CannotFail(),
    Computed("spmd::attention", AttentionFactors)
        .Types(AttentionTypes)
        .Decomposes(DecomposeAttention)
        .InRings(kRingOfAttention)
        .With(&OpFacts::dims, DimsUse::kForEach)
        .Flops(4)
        .CannotFail(),
    Computed("spmd::attention_backward", AttentionBackwardFactors)
        .Types(AttentionBackwardTypes)
        .Decomposes(DecomposeAttentionBackward)
        .InRings(kRingOfAttentionBackward)
        .With(&OpFacts::dims, DimsUse::kForEach)
        .Flops(10)
        .CannotFail(),
    Computed("spmd::grouped_mm", GroupedMatmulFactors)
        .Each({0, 1})
        .Types(GroupedMatmulTypes)
        .Local(LocalGroupedMatmul)
        .Flops(2)
        .CannotFail(),
    Product("spmd::add_linear_dinput", "+... k, ... n, n k -> ... k")
        .Each({1, 2})
        .With(&OpFacts::adds_result_of, "spmd::linear_dinput"),
    Product("spmd::linear_dinput", "... n, n k -> ... k")
        .Each({0, 1})
        .With(&OpFacts::product, MatrixProduct{})
        .With(&OpFacts::added_by, "spmd::add_linear_dinput"),
    Product("spmd::linear_dweight", "... n, ... k -> n k")
        .Each({0, 1})
        .With(&OpFacts::product, MatrixProduct{.left_transposed = true}));
static_assert(AreRowsOf(Family::kMatmul, kMatmulRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> MatmulRows() { return kMatmulRows; }

}  // namespace spmd::rules
