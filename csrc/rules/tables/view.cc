// SPDX-License-Identifier: Apache-2.0
// Views, and ops that only move elements.
#include <utility>
#include <vector>

#include "csrc/rules/builder.h"
#include "csrc/rules/families.h"
#include "csrc/rules/tables/axes.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/joining.h"
#include "csrc/rules/tables/manual.h"
#include "csrc/rules/tables/parts.h"
#include "csrc/rules/tables/reshape.h"
#include "csrc/rules/tables/slicing.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

Attributes LocalViewSize(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return WithLocalDims(call, factors, cut, "size");
}
Attributes LocalInputSizes(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return WithLocalDims(call, factors, cut, "input_sizes");
}

// The dimensions to squeeze. They are named, since other dimensions of a tile may have size 1, too.
std::vector<int64_t> Squeezed(const OpCall& call, const std::vector<int>& kept) {
  std::vector<int64_t> dims;
  for (int d = 0, next = 0; d < call.operand(0).rank(); ++d) {
    if (next < static_cast<int>(kept.size()) && kept[next] == d) {
      ++next;
    } else {
      dims.push_back(d);
    }
  }
  return dims;
}
template <SourceFn Source>
absl::StatusOr<std::vector<ir::ValueId>> AsSqueezeDims(Builder& b, const ir::Graph& from,
                                                       const ir::Node& node, Operands operands) {
  const OpCall call = OpCall::Of(from, node);
  std::vector<int64_t> dims = Squeezed(call, Source(call));
  if (dims.empty()) return std::vector<ir::ValueId>{operands[0]};
  return std::vector<ir::ValueId>{
      b.Call("aten::squeeze.dims", {operands[0]}, {{"dim", std::move(dims)}})};
}
Attributes LocalSqueezeDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  local.Set("dim", Squeezed(call, SqueezeDimsSource(call)));
  return local;
}

// An op that moves the elements of its one operand. A partial sum is moved as the sum is.
constexpr Row Moves(absl::string_view op, FactorsFn factors) {
  return Computed(op, factors).Jointly({0}).Monotone().Flops(kTrafficOnly).CannotFail();
}
// The same for an op that returns a view.
constexpr Row Views(absl::string_view op, FactorsFn factors) {
  return Moves(op, factors).Flops(0).With(&OpFacts::same_elements, true);
}

constexpr Row Same(absl::string_view op) {
  return Einsum(op, "... -> ...").Jointly({0}).Monotone().Types(SameTypes).Flops(0);
}

template <SourceFn Source>
constexpr Row ViewsDims(absl::string_view op) {
  return Views(op, Mapped<Source>).Types(MappedTypes<Source>);
}

constexpr auto kViewRows = Rows(
    CannotFail(Rows(
        Same("aten::alias").With(&OpFacts::is_operand, true),
        Rewritten("aten::block_diag", DecomposeBlockDiag),
        Computed("aten::cat", CatFactors)
            .JointlyAll()
            .Monotone()
            .Types(CatTypes)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::blocks, BlockUse::kJoin),
        Rewritten("aten::channel_shuffle", DecomposeChannelShuffle),
        Computed("aten::constant_pad_nd", PadFactors)
            .Jointly({0})
            .LinearIf(PadsWithZero)
            .Types(PadTypes)
            .Local(LocalPad)
            .Decomposes(PadThenFill),
        Computed("aten::diag_embed", Mapped<DiagEmbedSource>)
            .Jointly({0})
            .Decomposes(DecomposeDiagEmbed),
        ViewsDims<DiagonalSource>("aten::diagonal").Types(nullptr).Decomposes(DecomposeDiagonal),
        Computed("aten::diagonal_backward", DiagonalBackwardFactors)
            .Jointly({0})
            .Types(InputSizesTypes)
            .Local(LocalInputSizes)
            .Decomposes(DecomposeDiagEmbed),
        Computed("aten::diagonal_scatter", DiagonalScatterFactors)
            .With(&OpFacts::kernel, "spmd::diagonal_scatter")  // of windows, too
            .Jointly({0, 1})
            .Monotone()
            .Types(SameTypes)
            .Decomposes(DecomposeDiagonalScatter),
        Views("aten::expand", Mapped<ExpandSource>)
            .Types(ExpandTypes)
            .Local(LocalViewSize)
            .With(&OpFacts::dims, DimsUse::kExpands),
        Moves("aten::flip", FlipFactors).Types(SameTypes).With(&OpFacts::dims, DimsUse::kInDim),
        Rewritten("aten::narrow_copy", DecomposeNarrowCopy),
        ViewsDims<PermuteSource>("aten::permute").With(&OpFacts::dims, DimsUse::kPermutes),
        Moves("aten::repeat", RepeatFactors).Local(LocalRepeats),
        Moves("aten::roll", RollFactors).Types(SameTypes).Local(LocalRoll).Decomposes(RollAsVector),
        Rewritten("aten::rot90", DecomposeRot90),
        ViewsDims<SelectSource>("aten::select.int")
            .Decomposes(SelectByPart)
            .With(&OpFacts::dims, DimsUse::kInDim),
        Computed("aten::select_backward", SelectBackwardFactors)
            .Jointly({0})
            .Types(InputSizesTypes)
            .Local(LocalInputSizes)
            .Decomposes(SelectBackwardAsSlice)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::sizes, "input_sizes"),
        Computed("aten::select_scatter", SelectScatterFactors)
            .With(&OpFacts::kernel, "spmd::select_scatter")  // of windows, too
            .Jointly({0, 1})
            .Monotone()
            .Types(SameTypes)
            .Decomposes(SelectScatterAsSlice)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::puts_back,
                  PutsBack{.view = "aten::select.int", .begin = "index", .drops_dim = true}),
        Views("aten::slice.Tensor", SliceFactors)
            .Types(SliceTypes)
            .Local(LocalSlice)
            .Decomposes(SliceOneByPart)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::blocks, BlockUse::kTake),
        Computed("aten::slice_backward", SliceBackwardFactors)
            .Jointly({0})
            .Types(InputSizesTypes)
            .Local(LocalSliceBackward)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::sizes, "input_sizes")
            .With(&OpFacts::blocks, BlockUse::kPlace),
        Computed("aten::slice_scatter", SliceScatterFactors)
            .With(&OpFacts::kernel, "spmd::slice_scatter")  // of windows, too
            .Jointly({0, 1})
            .Monotone()
            .Types(SameTypes)
            .Local(LocalSliceScatter)
            .With(&OpFacts::dims, DimsUse::kInDim)
            .With(&OpFacts::puts_back,
                  PutsBack{.view = "aten::slice.Tensor", .begin = "start", .step = "step"})
            .With(&OpFacts::blocks, BlockUse::kPut),
        Rewritten("aten::split_with_sizes_copy", DecomposeSplit),
        ViewsDims<SqueezeSource>("aten::squeeze").DecomposesAlways(AsSqueezeDims<SqueezeSource>),
        ViewsDims<SqueezeDimSource>("aten::squeeze.dim")
            .DecomposesAlways(AsSqueezeDims<SqueezeDimSource>),
        ViewsDims<SqueezeDimsSource>("aten::squeeze.dims").Local(LocalSqueezeDims),
        Computed("aten::stack", StackFactors)
            .JointlyAll()
            .Monotone()
            .Types(StackTypes)
            .Decomposes(StackAsCat),
        ViewsDims<TSource>("aten::t"), ViewsDims<TransposeSource>("aten::transpose.int"),
        Einsum("aten::tril", "... -> ...").Jointly({0}).Types(SameTypes).Local(LocalTriangle),
        Einsum("aten::triu", "... -> ...").Jointly({0}).Types(SameTypes).Local(LocalTriangle),
        Rewritten("aten::unbind_copy.int", DecomposeSplit), Views("aten::unfold", UnfoldFactors),
        Computed("aten::unfold_backward", UnfoldBackwardFactors)
            .Jointly({0})
            .Types(InputSizesTypes)
            .Local(LocalInputSizes),
        ViewsDims<UnsqueezeSource>("aten::unsqueeze"),
        Views("aten::view", ReshapeFactors)
            .Types(ReshapeTypes)
            .Local(LocalViewSize)
            .With(&OpFacts::kernel, "aten::reshape")  // works with any strides
            .With(&OpFacts::dims, DimsUse::kReshapes),
        Computed("aten::view.dtype", BitcastFactors)
            .Flops(0)
            .Types(BitcastTypes)
            .With(&OpFacts::needs_contiguous, true),
        Computed("aten::view_as_complex", Mapped<ViewAsComplexSource>)
            .Jointly({0})
            .Flops(0)
            .With(&OpFacts::needs_contiguous, true),
        Computed("aten::view_as_real", Mapped<ViewAsRealSource>)
            .Jointly({0})
            .Flops(0)
            .With(&OpFacts::needs_contiguous, true),
        Computed("spmd::reorder", ReorderFactors)
            .Jointly({0})
            .Flops(kTrafficOnly)
            .Types(SameTypes)
            .Local(LocalReorder),
        All(Computed("", RegionFactors).Jointly({0}).Flops(0).Types(RegionTypes),
            {"spmd::to_global", "spmd::to_local"}),
        Moves("spmd::roll_start", RollStartFactors).Jointly({0, 1}).Types(SameTypes))),
    Views("spmd::slice_start", SliceStartFactors)
        .Types(SliceStartTypes)
        .Decomposes(SliceStartByPart)
        .With(&OpFacts::fails, Failure::kOnValues),
    Computed("spmd::slice_start_scatter", SliceStartScatterFactors)
        .Jointly({0, 1})
        .Monotone()
        .Types(SameTypes)
        .Decomposes(SliceStartScatterByPart)
        .With(&OpFacts::puts_back, PutsBack{.view = "spmd::slice_start"}));
static_assert(AreRowsOf(Family::kView, kViewRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> ViewRows() { return kViewRows; }

}  // namespace spmd::rules
