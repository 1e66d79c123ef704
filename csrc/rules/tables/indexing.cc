// SPDX-License-Identifier: Apache-2.0
// Ops with tensors of indices: embedding, gather and scatter, indexing, likelihoods. Indices are
// always global.
#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/rules/families.h"
#include "csrc/rules/tables/batch_index.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/embedding.h"
#include "csrc/rules/tables/nll.h"
#include "csrc/rules/tables/parts.h"
#include "csrc/rules/tables/scatter.h"

namespace spmd::rules {
namespace {

// An op that moves elements, so that its factors' product is no work.
constexpr Row MovesRows(absl::string_view op, FactorsFn factors) {
  return Computed(op, factors).Flops(kTrafficOnly);
}

absl::StatusOr<OpFactors> Gather(const OpCall& call) {
  return GatherFactors(call, IndexedDim::kWhole);
}
absl::StatusOr<OpFactors> Index(const OpCall& call) {
  return IndexFactors(call, IndexedDim::kWhole);
}
absl::StatusOr<OpFactors> IndexPut(const OpCall& call) {
  return IndexPutFactors(call, IndexedDim::kWhole);
}
absl::StatusOr<OpFactors> IndexCopy(const OpCall& call) {
  return IndexWriteFactors(call, IndexedDim::kWhole, /*adds=*/false);
}
absl::StatusOr<OpFactors> IndexAdd(const OpCall& call) {
  return IndexWriteFactors(call, IndexedDim::kWhole, /*adds=*/true);
}
absl::StatusOr<OpFactors> Scatter(const OpCall& call) {
  return ScatterFactors(call, IndexedDim::kWhole, /*adds=*/false);
}
absl::StatusOr<OpFactors> ScatterAdd(const OpCall& call) {
  return ScatterFactors(call, IndexedDim::kWhole, /*adds=*/true);
}

// searchsorted: each value is searched for in a row of the sorted sequence. There is one row for
// all values, or one per row of values.
absl::StatusOr<OpFactors> SearchSortedFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = call.operand(1).rank(), rows = call.operand(0).rank() - 1;
  for (int d = 0; d < rank; ++d) {
    const int factor = f.Add(call.operand(1).dims[d]);
    f.OverOperand(1, d, factor);
    f.OverResult(d, factor);
    for (int k : {0, 2}) {
      if (d < rows && call.has(k)) f.OverOperand(k, d, factor);
    }
  }
  const int sequence = f.AddWhole(call.operand(0).dims[rows]);
  for (int k : {0, 2}) {
    if (call.has(k)) f.OverOperand(k, rows, sequence);
  }
  return f.Take();
}

// isin: an element is one of the test elements if it is one of a part of them. (That it is none of
// them takes all.)
template <int Tests>
absl::StatusOr<OpFactors> IsInFactors(const OpCall& call) {
  CallFactors f(call);
  for (int d = 0; d < call.results[0].rank(); ++d) f.Pass(d, d);
  const bool invert = call.attrs().GetBoolOr("invert", false);
  const int first = call.results[0].rank();
  const Dims& tests = call.operand(Tests).dims;
  for (int d = 0; d < static_cast<int>(tests.size()); ++d) {
    f.OverOperand(Tests, d, invert ? f.AddWhole(tests[d]) : f.Add(tests[d]));
  }
  OpFactors factors = f.Take();
  for (size_t k = first; k < factors.factors.size(); ++k) {
    factors.factors[k].reduce = ReduceKind::kOr;
  }
  return factors;
}

absl::StatusOr<std::vector<TensorType>> GatherTypes(const OpCall& call) {
  return std::vector<TensorType>{{call.operand(0).dtype, call.operand(1).dims}};
}

constexpr Row Writes(absl::string_view op, FactorsFn factors, DecomposeFn by_part) {
  return MovesRows(op, factors).Types(SameTypes).Decomposes(by_part);
}
constexpr Row PutsAt(absl::string_view op) {
  return Accumulates(Writes(op, IndexPut, IndexPutByPart))
      .DecomposesBatch(IndexPutByBatch)
      .With(&OpFacts::rows, RowsByList::kWrites);
}

constexpr auto kIndexingRows = Rows(
    PutsAt("aten::_index_put_impl"),
    MovesRows("aten::_unsafe_index.Tensor", Index)
        .Jointly({0})
        .Monotone()
        .Decomposes(IndexByPart)
        .DecomposesBatch(IndexByBatch),
    PutsAt("aten::_unsafe_index_put"), Rewritten("aten::embedding", EmbeddingByRows),
    Rewritten("aten::embedding_dense_backward", EmbeddingBackwardByRows),
    MovesRows("aten::gather", Gather)
        .Jointly({0})
        .Monotone()
        .Types(GatherTypes)
        .Decomposes(GatherByPart)
        .FailsOnIndices()
        .With(&OpFacts::dims, DimsUse::kInDim),
    Einsum("aten::bucketize.Scalar", "[n] -> ()"),
    Computed("aten::isin.Scalar_Tensor", IsInFactors<0>).CannotFail(),
    Elementwise("aten::isin.Tensor_Scalar").Types(nullptr),
    Computed("aten::isin.Tensor_Tensor", IsInFactors<1>).CannotFail(),
    MovesRows("aten::index.Tensor", Index)
        .Jointly({0})
        .Monotone()
        .Decomposes(IndexByPart)
        .DecomposesBatch(IndexByBatch),
    Accumulates(Writes("aten::index_add", IndexAdd, IndexAddByPart).Jointly({0, 2}))
        .FailsOnIndices()
        .With(&OpFacts::rows, RowsByList::kWrites)
        .With(&OpFacts::dims, DimsUse::kInDim),
    Writes("aten::index_copy", IndexCopy, IndexWriteByPart)
        .Jointly({0, 2})
        .Monotone()
        .FailsOnIndices(),
    Writes("aten::index_fill.int_Scalar", IndexCopy, IndexWriteByPart).FailsOnIndices(),
    Writes("aten::index_fill.int_Tensor", IndexCopy, IndexWriteByPart).FailsOnIndices(),
    PutsAt("aten::index_put"),
    Writes("aten::index_reduce", IndexCopy, IndexWriteByPart)
        .With(&OpFacts::kernel, "spmd::index_reduce"),  // works with tiles of one row
    MovesRows("aten::index_select", IndexSelectFactors)
        .Jointly({0})
        .Monotone()
        .Decomposes(IndexSelectByPart)
        .FailsOnIndices()
        .With(&OpFacts::dims, DimsUse::kInDim),
    Rewritten("aten::nll_loss2d_backward", Nll2dBackward),
    Rewritten("aten::nll_loss2d_forward", Nll2dForward),
    Rewritten("aten::nll_loss_backward", NllBackward),
    Rewritten("aten::nll_loss_forward", NllForward), Writes("aten::put", PutFactors, PutByPart),
    Writes("aten::scatter.reduce", Scatter, ScatterByPart),
    Writes("aten::scatter.src", Scatter, ScatterByPart)
        .Jointly({0, 2})
        .Monotone()
        .FailsOnIndices()
        .With(&OpFacts::dims, DimsUse::kInDim),
    Writes("aten::scatter.value", Scatter, ScatterByPart)
        .FailsOnIndices()
        .With(&OpFacts::dims, DimsUse::kInDim),
    Writes("aten::scatter.value_reduce", Scatter, ScatterByPart),
    Accumulates(Writes("aten::scatter_add", ScatterAdd, ScatterAddByPart).Jointly({0, 2}))
        .FailsOnIndices()
        .With(&OpFacts::dims, DimsUse::kInDim),
    Writes("aten::scatter_reduce.two", Scatter, ScatterByPart).FailsOnIndices(),
    Einsum("aten::searchsorted.Scalar", "[n], [n]? -> ()"),
    Computed("aten::searchsorted.Tensor", SearchSortedFactors),
    MovesRows("aten::take", TakeFactors).Jointly({0}).Monotone().Decomposes(TakeByPart),
    Computed("spmd::cross_entropy_dinput", CrossEntropyDInputFactors)
        .Types(CrossEntropyDInputTypes)
        .Local(LocalCrossEntropyDInput),
    Einsum("spmd::embedding", "v d, ... -> ... d")
        .Each({0})
        .Types(EmbeddingTypes)
        .Local(LocalEmbedding)
        .Flops(kTrafficOnly)
        .FailsOnIndices("num_rows")
        .With(&OpFacts::looks_up, true)
        .With(&OpFacts::dims, DimsUse::kForEach),
    Einsum("spmd::embedding_dweight", "... d, ... -> v d")
        .Each({0})
        .Types(EmbeddingDWeightTypes)
        .Local(LocalEmbeddingDWeight)
        .Flops(kTrafficOnly)
        .FailsOnIndices("num_rows")
        .With(&OpFacts::dims, DimsUse::kForEach),
    Computed("spmd::nll_dinput", NllDInputFactors)
        .Each({0, 3})
        .Types(NllDInputTypes)
        .Local(LocalNllDInput)
        .With(&OpFacts::through_log_softmax, "spmd::cross_entropy_dinput")
        .With(&OpFacts::dims, DimsUse::kClassOfRow),
    Einsum("spmd::nll_rows", "... c, ..., c? -> ...")
        .Jointly({0})
        .Types(NllRowsTypes)
        .Local(LocalNll)
        .FailsOnIndices("num_classes")
        .With(&OpFacts::dims, DimsUse::kClassOfRow),
    Einsum("spmd::nll_sum", "... c, ..., c? -> (), ()")
        .Types(NllSumTypes)
        .Local(LocalNll)
        .FailsOnIndices("num_classes")
        .With(&OpFacts::dims, DimsUse::kClassOfRow));
static_assert(AreRowsOf(Family::kIndexing, kIndexingRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> IndexingRows() { return kIndexingRows; }

}  // namespace spmd::rules
