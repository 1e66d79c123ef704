// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/columns.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/sliding.h"

namespace spmd::rules {
namespace {

using Sizes = std::vector<int64_t>;
constexpr int kSpatial = 2;

// The number of windows along each dimension of an image.
Sizes PositionsOf(const OpCall& call, const Dims& image) {
  Sizes positions;
  for (int i = 0; i < kSpatial; ++i) {
    positions.push_back(PoolOf(call, i).OutputSize(image[image.size() - kSpatial + i]));
  }
  return positions;
}

// The attributes that both ops take.
Attributes WindowLists(const OpCall& call) {
  return {{"kernel_size", call.attrs().GetInts("kernel_size")},
          {"dilation", call.attrs().GetInts("dilation")},
          {"padding", call.attrs().GetInts("padding")},
          {"stride", call.attrs().GetInts("stride")}};
}

// `dims` with all but the `leading` sizes replaced by `trailing`.
Sizes WithTrailing(const Dims& dims, size_t leading, const Sizes& trailing) {
  Sizes sizes(dims.begin(), dims.begin() + static_cast<int64_t>(leading));
  sizes.insert(sizes.end(), trailing.begin(), trailing.end());
  return sizes;
}

int64_t KernelPoints(const OpCall& call) {
  return CheckedMul(PoolOf(call, 0).kernel, PoolOf(call, 1).kernel);
}

// Leading dimensions pass. Where the image has channels, the columns have (channels [kernel]).
OpFactors WindowFactors(const OpCall& call, bool columns_are_result) {
  CallFactors f(call);
  const int channels = call.operand(0).rank() - kSpatial - 1;
  for (int d = 0; d < channels; ++d) f.Pass(d, d);
  const TensorType& image = columns_are_result ? call.operand(0) : call.results[0];
  const int channel = f.Add(image.dims[channels]);
  f.OverOperand(0, channels, channel);
  f.OverResult(channels, channel);
  const int point = f.AddWhole(KernelPoints(call));
  if (columns_are_result) {
    f.OverResult(channels, point);
  } else {
    f.OverOperand(0, channels, point);
  }
  for (int i = 0; i < kSpatial; ++i) {
    const int d = channels + 1 + i;
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    const Sliding window = PoolOf(call, i);
    f.OverWindow(
        0, d, factor,
        columns_are_result ? window.InputsOf(WindowShard()) : window.OutputsOf(WindowShard()));
  }
  return f.Take();
}

Attributes LocalSizes(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                      absl::string_view name) {
  Attributes local = call.attrs();
  local.Set(name, LocalSpatialSizes(call, factors, cut, Result(0), kSpatial));
  local.Set("padding", LocalPadding(call, factors, cut, 0, kSpatial));
  return local;
}

}  // namespace

ValuesOrStatus Im2ColByPosition(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  const OpCall call = OpCall::Of(from, node);
  Attributes attrs = WindowLists(call);
  attrs.Set("output_size", PositionsOf(call, call.operand(0).dims));
  const ir::ValueId columns = b.Call("spmd::im2col", {operands[0]}, std::move(attrs));
  const Dims& result = call.results[0].dims;
  return Values{b.View(columns, Sizes(result.begin(), result.end()))};
}

ValuesOrStatus Col2ImByPosition(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  const OpCall call = OpCall::Of(from, node);
  const Dims &columns = call.operand(0).dims, &image = call.results[0].dims;
  const ir::ValueId placed =
      b.View(operands[0], WithTrailing(columns, columns.size() - 1, PositionsOf(call, image)));
  Attributes attrs = WindowLists(call);
  attrs.Set("size", SpatialSizes(image, kSpatial));
  attrs.Set("crop_start", Sizes(kSpatial, 0));
  return Values{b.Call("spmd::col2im", {placed}, std::move(attrs))};
}

absl::StatusOr<OpFactors> Im2ColFactors(const OpCall& call) {
  return WindowFactors(call, /*columns_are_result=*/true);
}

absl::StatusOr<std::vector<TensorType>> Im2ColTypes(const OpCall& call) {
  TensorType type = WithSpatialSizes(call.operand(0), call.attrs().GetInts("output_size"));
  int64_t& channels = type.dims[type.dims.size() - kSpatial - 1];
  channels = CheckedMul(channels, KernelPoints(call));
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalIm2Col(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return LocalSizes(call, factors, cut, "output_size");
}

absl::StatusOr<OpFactors> Col2ImFactors(const OpCall& call) {
  return WindowFactors(call, /*columns_are_result=*/false);
}

absl::StatusOr<std::vector<TensorType>> Col2ImTypes(const OpCall& call) {
  TensorType type = WithSpatialSizes(call.operand(0), call.attrs().GetInts("size"));
  int64_t& channels = type.dims[type.dims.size() - kSpatial - 1];
  channels = FloorDiv(channels, KernelPoints(call));
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalCol2Im(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = LocalSizes(call, factors, cut, "size");
  std::vector<Expr> crop_start;
  for (int i = 0; i < kSpatial; ++i) {
    const int d = call.operand(0).rank() - kSpatial + i;
    // The columns in the window add up to an image that begins where the first of them begins.
    crop_start.push_back(IsWindowed(factors, cut, 0, d)
                             ? PoolOf(call, i).OffsetWithin(ResultShard(d))
                             : Expr(call.attrs().GetInts("crop_start")[i]));
  }
  local.Set("crop_start", ToAttr(crop_start));
  return local;
}

}  // namespace spmd::rules
