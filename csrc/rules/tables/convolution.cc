// SPDX-License-Identifier: Apache-2.0
// Ops on images: convolution, pooling, up-sampling, padding.
#include <vector>

#include "csrc/rules/families.h"
#include "csrc/rules/tables/avg_pool.h"
#include "csrc/rules/tables/border.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/columns.h"
#include "csrc/rules/tables/convolving.h"
#include "csrc/rules/tables/max_pool.h"
#include "csrc/rules/tables/resample.h"
#include "csrc/rules/tables/sliding.h"
#include "csrc/rules/tables/upsample.h"

namespace spmd::rules {
namespace {

constexpr Row Convolution(absl::string_view op) {
  return Computed(op, ConvolutionFactors).Each({0, 1}).Flops(2).AddedOnce({2});
}

// Means of integers are rounded, so that the mean of a sum is not the sum of the means.
bool IsNotIntegral(const OpCall& call) {
  return !IsIntegral(call.operand(0).dtype, /*include_bool=*/true);
}

template <int Rank>
constexpr Row AvgPool(absl::string_view op) {
  return Computed(op, OfRank<Rank, AvgPoolFactors>)
      .Jointly({0})
      .LinearIf(IsNotIntegral)
      .Local(LocalOfRank<Rank, LocalAvgPool>)
      .Decomposes(DecomposeOfRank<Rank, AvgPoolByDimension>);
}
template <int Rank>
constexpr Row AvgPoolBackward(absl::string_view op) {
  return Computed(op, OfRank<Rank, AvgPoolBackwardFactors>)
      .Jointly({0})
      .Decomposes(DecomposeOfRank<Rank, AvgPoolBackwardInCoreOps>);
}
template <int Rank>
constexpr Row AdaptiveAvgPool(absl::string_view op) {
  return Computed(op, OfRank<Rank, AdaptiveAvgPoolFactors>)
      .Jointly({0})
      .Local(LocalOfRank<Rank, LocalOutputSize>)
      .Decomposes(DecomposeOfRank<Rank, AdaptiveAvgPoolByDimension>);
}
template <int Rank>
constexpr Row AdaptiveAvgPoolBackward(absl::string_view op) {
  return Computed(op, OfRank<Rank, AdaptiveAvgPoolBackwardFactors>)
      .Jointly({0})
      .Decomposes(DecomposeOfRank<Rank, AdaptiveAvgPoolBackwardByDimension>);
}
template <int Rank>
constexpr Row MaxPool(absl::string_view op) {
  return Computed(op, OfRank<Rank, MaxPoolWithIndicesFactors>)
      .Decomposes(DecomposeOfRank<Rank, MaxPoolByOffset>);
}
template <int Rank>
constexpr Row MaxPoolBackward(absl::string_view op) {
  return Computed(op, OfRank<Rank, MaxPoolWithIndicesFactors>)
      .Jointly({0})
      .Decomposes(DecomposeOfRank<Rank, MaxPoolBackwardByOffset>);
}
template <int Rank>
constexpr Row Nearest(absl::string_view op, absl::string_view filter) {
  return Computed(op, OfRank<Rank, NearestFactors>)
      .Jointly({0})
      .Types(UpsampleTypes)
      .Local(LocalOfRank<Rank, LocalOutputSize>)
      .Decomposes(DecomposeOfRank<Rank, UpsampleByDimension>)
      .With(&OpFacts::filter, filter);
}
template <int Rank>
constexpr Row NearestBackward(absl::string_view op, absl::string_view filter) {
  return Computed(op, OfRank<Rank, NearestBackwardFactors>)
      .Jointly({0})
      .Types(UpsampleBackwardTypes)
      .Local(LocalOfRank<Rank, LocalUpsampleBackward>)
      .Decomposes(DecomposeOfRank<Rank, UpsampleBackwardByDimension>)
      .With(&OpFacts::filter, filter);
}
template <int Rank>
constexpr Row Interpolate(absl::string_view op, absl::string_view filter) {
  return Computed(op, OfRank<Rank, InterpolateFactors>)
      .Jointly({0})
      .LinearIf(IsNotIntegral)
      .Types(UpsampleTypes)
      .Local(LocalOfRank<Rank, LocalOutputSize>)
      .Decomposes(DecomposeOfRank<Rank, UpsampleByDimension>)
      .With(&OpFacts::filter, filter);
}
template <int Rank>
constexpr Row InterpolateBackward(absl::string_view op, absl::string_view filter) {
  return Computed(op, OfRank<Rank, InterpolateFactors>)
      .Jointly({0})
      .Types(UpsampleBackwardTypes)
      .Local(LocalOfRank<Rank, LocalUpsampleBackward>)
      .Decomposes(DecomposeOfRank<Rank, UpsampleBackwardByDimension>)
      .With(&OpFacts::filter, filter);
}
template <int Rank>
constexpr Row SpatialWhole(absl::string_view op) {
  return Computed(op, OfRank<Rank, SpatialWholeFactors>);
}
constexpr Row Padded(absl::string_view op, absl::string_view filter) {
  return Computed(op, BorderFactors)
      .Jointly({0})
      .Decomposes(BorderByDimension)
      .With(&OpFacts::filter, filter);
}
constexpr Row BorderBackward(absl::string_view op, absl::string_view filter) {
  return Computed(op, BorderFactors)
      .Jointly({0})
      .Decomposes(BorderBackwardByDimension)
      .With(&OpFacts::filter, filter);
}

// oneDNN caches kernels that were built for all threads and wait for them in a barrier, which
// would never open inside a parallel region of ours.
constexpr Row OwnThreads(const Row& row) { return row.With(&OpFacts::needs_own_threads, true); }

constexpr auto kConvolutionRows = CannotFail(Rows(
    AdaptiveAvgPool<2>("aten::_adaptive_avg_pool2d"),
    AdaptiveAvgPoolBackward<2>("aten::_adaptive_avg_pool2d_backward"),
    AdaptiveAvgPool<3>("aten::_adaptive_avg_pool3d"),
    AdaptiveAvgPoolBackward<3>("aten::_adaptive_avg_pool3d_backward"),
    Interpolate<2>("aten::_upsample_bicubic2d_aa", "cubic_aa"),
    InterpolateBackward<2>("aten::_upsample_bicubic2d_aa_backward", "cubic_aa"),
    Interpolate<2>("aten::_upsample_bilinear2d_aa", "linear_aa"),
    InterpolateBackward<2>("aten::_upsample_bilinear2d_aa_backward", "linear_aa"),
    Nearest<1>("aten::_upsample_nearest_exact1d", "nearest_exact"),
    NearestBackward<1>("aten::_upsample_nearest_exact1d_backward", "nearest_exact"),
    Nearest<2>("aten::_upsample_nearest_exact2d", "nearest_exact"),
    NearestBackward<2>("aten::_upsample_nearest_exact2d_backward", "nearest_exact"),
    Nearest<3>("aten::_upsample_nearest_exact3d", "nearest_exact"),
    NearestBackward<3>("aten::_upsample_nearest_exact3d_backward", "nearest_exact"),
    SpatialWhole<2>("aten::adaptive_max_pool2d"),
    SpatialWhole<2>("aten::adaptive_max_pool2d_backward"),
    SpatialWhole<3>("aten::adaptive_max_pool3d"),
    SpatialWhole<3>("aten::adaptive_max_pool3d_backward"), AvgPool<2>("aten::avg_pool2d"),
    AvgPoolBackward<2>("aten::avg_pool2d_backward"), AvgPool<3>("aten::avg_pool3d"),
    AvgPoolBackward<3>("aten::avg_pool3d_backward"),
    Einsum("aten::conv_tbc", "[t] b c, [k] c o, +o -> [s] b o").Each({0, 1}).Flops(2),
    OwnThreads(Convolution("aten::convolution")
                   .Types(ConvolutionTypes)
                   .Local(LocalConvolution)
                   .Decomposes(TransposedAsDInput)
                   .With(&OpFacts::padding, ZeroPadding{.image = 0})),
    OwnThreads(Rewritten("aten::convolution_backward", ConvolutionBackward)),
    MaxPool<2>("aten::max_pool2d_with_indices"),
    MaxPoolBackward<2>("aten::max_pool2d_with_indices_backward"),
    MaxPool<3>("aten::max_pool3d_with_indices"),
    MaxPoolBackward<3>("aten::max_pool3d_with_indices_backward"),
    Einsum("aten::pixel_shuffle", "... (c [p] [q]) h w -> ... c (h [p]) (w [q])")
        .Jointly({0})
        .Monotone()
        .Flops(kTrafficOnly),
    Einsum("aten::pixel_unshuffle", "... c (h [p]) (w [q]) -> ... (c [p] [q]) h w")
        .Jointly({0})
        .Monotone()
        .Flops(kTrafficOnly),
    Padded("aten::reflection_pad1d", "reflect"),
    BorderBackward("aten::reflection_pad1d_backward", "reflect"),
    Padded("aten::reflection_pad2d", "reflect"),
    BorderBackward("aten::reflection_pad2d_backward", "reflect"),
    Padded("aten::reflection_pad3d", "reflect"),
    BorderBackward("aten::reflection_pad3d_backward", "reflect"),
    Padded("aten::replication_pad1d", "nearest"),
    BorderBackward("aten::replication_pad1d_backward", "nearest"),
    Padded("aten::replication_pad2d", "nearest"),
    BorderBackward("aten::replication_pad2d_backward", "nearest"),
    Padded("aten::replication_pad3d", "nearest"),
    BorderBackward("aten::replication_pad3d_backward", "nearest"),
    Interpolate<2>("aten::upsample_bicubic2d", "cubic"),
    InterpolateBackward<2>("aten::upsample_bicubic2d_backward", "cubic"),
    Interpolate<2>("aten::upsample_bilinear2d", "linear"),
    InterpolateBackward<2>("aten::upsample_bilinear2d_backward", "linear"),
    Interpolate<1>("aten::upsample_linear1d", "linear"),
    InterpolateBackward<1>("aten::upsample_linear1d_backward", "linear"),
    Nearest<1>("aten::upsample_nearest1d", "nearest"),
    NearestBackward<1>("aten::upsample_nearest1d_backward", "nearest"),
    Nearest<2>("aten::upsample_nearest2d", "nearest"),
    NearestBackward<2>("aten::upsample_nearest2d_backward", "nearest"),
    Nearest<3>("aten::upsample_nearest3d", "nearest"),
    NearestBackward<3>("aten::upsample_nearest3d_backward", "nearest"),
    Interpolate<3>("aten::upsample_trilinear3d", "linear"),
    InterpolateBackward<3>("aten::upsample_trilinear3d_backward", "linear"),
    Computed("spmd::col2im", Col2ImFactors).Jointly({0}).Types(Col2ImTypes).Local(LocalCol2Im),
    OwnThreads(Computed("spmd::conv_dinput", ConvDInputFactors)
                   .Each({0, 1})
                   .Types(ConvDInputTypes)
                   .Local(LocalConvDInput)
                   .Flops(2)),
    OwnThreads(Computed("spmd::conv_dweight", ConvDWeightFactors)
                   .Each({0, 1})
                   .Types(ConvDWeightTypes)
                   .Local(LocalConvDWeight)
                   .Flops(2)
                   .With(&OpFacts::padding, ZeroPadding{.image = 1, .kernel_is_result = true})),
    Computed("spmd::im2col", Im2ColFactors).Jointly({0}).Types(Im2ColTypes).Local(LocalIm2Col),
    Computed("spmd::max_pool", MaxPoolFactors).Types(MaxPoolTypes).Local(LocalMaxPool),
    Computed("spmd::max_pool_dinput", MaxPoolDInputFactors)
        .Jointly({0})
        .Types(MaxPoolDInputTypes)
        .Local(LocalMaxPoolDInput),
    Computed("spmd::resample", ResampleFactors)
        .Jointly({0})
        .Types(ResampleTypes)
        .Local(LocalResample),
    Computed("spmd::resample_dinput", ResampleDInputFactors)
        .Jointly({0})
        .Types(ResampleTypes)
        .Local(LocalResampleDInput)));
static_assert(AreRowsOf(Family::kConvolution, kConvolutionRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> ConvolutionRows() { return kConvolutionRows; }

}  // namespace spmd::rules
