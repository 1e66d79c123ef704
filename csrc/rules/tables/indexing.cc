// SPDX-License-Identifier: Apache-2.0
// Ops that index tensors are handed to: embedding, gather and scatter, indexing, likelihoods.
// Indices are always global.
#include <utility>
#include <vector>

#include "csrc/rules/registry.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/embedding.h"
#include "csrc/rules/tables/nll.h"
#include "csrc/rules/tables/scatter.h"

namespace spmd::rules {
namespace {

absl::StatusOr<OpFactors> NoFactors(const OpCall& call) { return WholeFactors(call); }

// Moves elements: the product of its factors counts nothing.
Rule Moves(absl::string_view op, FactorsFn factors) {
  return Computed(op, factors).Flops(kTrafficOnly);
}

// Operand 0 is what sums are added to.
Rule Accumulates(Rule rule) {
  rule.added = {0};
  return rule;
}

}  // namespace

// Sorted by op.
std::vector<Rule> IndexingRules() {
  return {
      Accumulates(Moves("aten::_index_put_impl", IndexPutFactors).Types(SameTypes)),
      Moves("aten::_unsafe_index.Tensor", IndexFactors).Jointly({0}).Monotone(),
      Accumulates(Moves("aten::_unsafe_index_put", IndexPutFactors).Types(SameTypes)),
      Computed("aten::embedding", NoFactors).DecomposesAlways(EmbeddingByRows),
      Computed("aten::embedding_dense_backward", NoFactors)
          .DecomposesAlways(EmbeddingBackwardByRows),
      Moves("aten::gather", GatherFactors).Jointly({0}).Monotone(),
      Moves("aten::index.Tensor", IndexFactors).Jointly({0}).Monotone(),
      Accumulates(Moves("aten::index_add", IndexAddFactors)
                      .Jointly({0, 2})
                      .Runtime({"alpha"})
                      .Types(SameTypes)),
      Moves("aten::index_copy", IndexCopyFactors).Jointly({0, 2}).Monotone().Types(SameTypes),
      Moves("aten::index_fill.int_Scalar", IndexCopyFactors).Runtime({"value"}).Types(SameTypes),
      Moves("aten::index_fill.int_Tensor", IndexCopyFactors).Types(SameTypes),
      Accumulates(Moves("aten::index_put", IndexPutFactors).Types(SameTypes)),
      Moves("aten::index_select", IndexSelectFactors).Jointly({0}).Monotone(),
      Computed("aten::nll_loss2d_backward", NoFactors).DecomposesAlways(Nll2dBackward),
      Computed("aten::nll_loss2d_forward", NoFactors).DecomposesAlways(Nll2dForward),
      Computed("aten::nll_loss_backward", NoFactors).DecomposesAlways(NllBackward),
      Computed("aten::nll_loss_forward", NoFactors).DecomposesAlways(NllForward),
      Moves("aten::scatter.reduce", ScatterFactors).Types(SameTypes),
      Moves("aten::scatter.src", ScatterFactors).Jointly({0, 2}).Monotone().Types(SameTypes),
      Moves("aten::scatter.value", ScatterFactors).Runtime({"value"}).Types(SameTypes),
      Moves("aten::scatter.value_reduce", ScatterFactors).Runtime({"value"}).Types(SameTypes),
      Accumulates(Moves("aten::scatter_add", ScatterAddFactors).Jointly({0, 2}).Types(SameTypes)),
      Moves("aten::scatter_reduce.two", ScatterFactors).Types(SameTypes),
      Moves("aten::take", TakeFactors).Jointly({0}).Monotone(),
      Computed("spmd::cross_entropy_dinput", CrossEntropyDInputFactors)
          .Types(CrossEntropyDInputTypes)
          .Local(LocalCrossEntropyDInput),
      Einsum("spmd::embedding", "v d, ... -> ... d")
          .Each({0})
          .Types(EmbeddingTypes)
          .Local(LocalEmbedding)
          .Flops(kTrafficOnly),
      Einsum("spmd::embedding_dweight", "... d, ... -> v d")
          .Each({0})
          .Types(EmbeddingDWeightTypes)
          .Local(LocalEmbeddingDWeight)
          .Flops(kTrafficOnly),
      Computed("spmd::nll_dinput", NllDInputFactors)
          .Each({0, 3})
          .Types(NllDInputTypes)
          .Local(LocalNllDInput),
      Einsum("spmd::nll_rows", "n c, n, c? -> n").Jointly({0}).Types(NllRowsTypes).Local(LocalNll),
      Einsum("spmd::nll_sum", "n c, n, c? -> (), ()").Types(NllSumTypes).Local(LocalNll),
  };
}

}  // namespace spmd::rules
