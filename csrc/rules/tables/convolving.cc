// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/convolving.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/sliding.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

constexpr int kFirstSpatial = 2;

bool IsTransposed(const OpCall& call) { return call.attrs().GetBoolOr("transposed", false); }
int64_t Groups(const OpCall& call) { return call.attrs().GetIntOr("groups", 1); }

// The window along spatial dimension i of a kernel with dims `weight`.
Sliding SlidingOf(const OpCall& call, const Dims& weight, int i) {
  return {weight[kFirstSpatial + i], SpatialEntry(call, "stride", i, 1),
          SpatialEntry(call, "padding", i, 0), SpatialEntry(call, "dilation", i, 1)};
}

// The factors of batch and channels, and the dimensions that they run over by role of the tensor.
struct Channels {
  int batch, group, in, out;

  Channels(CallFactors& f, const Dims& weight, int64_t batch_size, int64_t groups)
      : batch(f.Add(batch_size)),
        group(f.Add(groups)),
        in(f.Add(weight[1])),
        out(f.Add(groups == 0 ? 0 : weight[0] / groups)) {}

  template <typename Over>
  void OverInput(Over over) const {  // n (g i)
    over(0, batch), over(1, group), over(1, in);
  }
  template <typename Over>
  void OverOutput(Over over) const {  // n (g o)
    over(0, batch), over(1, group), over(1, out);
  }
  template <typename Over>
  void OverWeight(Over over) const {  // (g o) i
    over(0, group), over(0, out), over(1, in);
  }
};
auto OverOperand(CallFactors& f, int k) {
  return [&f, k](int dim, int factor) { f.OverOperand(k, dim, factor); };
}
auto OverResult(CallFactors& f) {
  return [&f](int dim, int factor) { f.OverResult(dim, factor); };
}

void KernelWhole(CallFactors& f, int operand, const Dims& weight) {
  for (int d = kFirstSpatial; d < static_cast<int>(weight.size()); ++d) {
    f.OverOperand(operand, d, f.AddWhole(weight[d]));
  }
}

// The factors of the spatial dimensions of a convolution: the result is sharded, the input is read
// through a window.
void ForwardSpatial(CallFactors& f, const OpCall& call) {
  for (int d = kFirstSpatial; d < call.operand(0).rank(); ++d) {
    const Sliding window = SlidingOf(call, call.operand(1).dims, d - kFirstSpatial);
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    if (window.IsPointwise()) {
      f.OverOperand(0, d, factor);
    } else {
      f.OverWindow(0, d, factor, window.InputsOf(WindowShard()));
    }
  }
}

// The factors of the spatial dimensions of a transposed convolution. The result is (input kernel)
// where windows neither overlap nor leave gaps.
void TransposedSpatial(CallFactors& f, const OpCall& call) {
  for (int d = kFirstSpatial; d < call.operand(0).rank(); ++d) {
    const int64_t in = call.operand(0).dims[d], out = call.results[0].dims[d];
    const Sliding window = SlidingOf(call, call.operand(1).dims, d - kFirstSpatial);
    const bool tiles = window.Tiles(out) && out / window.kernel == in;
    const int factor = tiles ? f.Add(in) : f.AddWhole(in);
    f.OverOperand(0, d, factor);
    if (tiles) f.OverResult(d, factor);
    f.OverResult(d, f.AddWhole(tiles ? window.kernel : out));
  }
}

// Sets "groups" to the number of groups in a tile: its local channels over those of one group,
// which is the local dimension 1 of the weight.
void SetGroups(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
               TensorRef channels, TensorRef weight, Attributes* local) {
  const bool result = channels.kind == TensorRef::Kind::kResult;
  const TensorFactors& dims = (result ? factors.results : factors.operands)[channels.index];
  if (Groups(call) == 1 || !IsCut(dims[1], cut)) return;
  local->Set("groups", FloorDiv(Expr::Size(channels, 1), Expr::Size(weight, 1)));
}

// The interval that `shard` of the result's dimension d covers in the uncropped gradient.
ExprInterval Region(const OpCall& call, int d, ExprInterval shard) {
  const int64_t crop = SpatialEntry(call, "crop_start", d - kFirstSpatial, 0);
  return {shard.begin + crop, shard.end + crop};
}

absl::StatusOr<std::vector<TensorType>> ListTypes(const OpCall& call, absl::string_view name) {
  const std::vector<int64_t>& sizes = call.attrs().GetInts(name);
  return std::vector<TensorType>{{call.operand(0).dtype, Dims(sizes.begin(), sizes.end())}};
}

}  // namespace

absl::StatusOr<OpFactors> ConvolutionFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& weight = call.operand(1).dims;
  const Channels c(f, weight, call.operand(0).dims[0], Groups(call));
  c.OverWeight(OverOperand(f, 1));
  if (IsTransposed(call)) {
    c.OverOutput(OverOperand(f, 0));
    c.OverInput(OverResult(f));
    TransposedSpatial(f, call);
  } else {
    c.OverInput(OverOperand(f, 0));
    c.OverOutput(OverResult(f));
    ForwardSpatial(f, call);
  }
  if (call.has(2)) {
    f.OverOperand(2, 0, c.group);
    f.OverOperand(2, 0, IsTransposed(call) ? c.in : c.out);
  }
  KernelWhole(f, 1, weight);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> ConvolutionTypes(const OpCall& call) {
  const TensorType& input = call.operand(0);
  const Dims& weight = call.operand(1).dims;
  TensorType type{input.dtype, {input.dims[0], weight[0]}};
  if (IsTransposed(call)) type.dims[1] = CheckedMul(weight[1], Groups(call));
  for (int d = kFirstSpatial; d < input.rank(); ++d) {
    const int i = d - kFirstSpatial;
    const Sliding window = SlidingOf(call, weight, i);
    type.dims.push_back(IsTransposed(call) ? CheckedAdd(window.InputSize(input.dims[d]),
                                                        SpatialEntry(call, "output_padding", i, 0))
                                           : window.OutputSize(input.dims[d]));
  }
  for (int64_t n : type.dims) {
    if (n < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.ToString(), ": the kernel is larger than the padded input"));
    }
  }
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalConvolution(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsTransposed(call)) {
    SetGroups(call, factors, cut, Result(0), Operand(1), &local);
  } else {
    SetGroups(call, factors, cut, Operand(0), Operand(1), &local);
    local.Set("padding",
              LocalPadding(call, factors, cut, 0, call.operand(0).rank() - kFirstSpatial));
  }
  return local;
}

absl::StatusOr<OpFactors> ConvDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& weight = call.operand(1).dims;
  const Channels c(f, weight, call.operand(0).dims[0], Groups(call));
  c.OverOutput(OverOperand(f, 0));
  c.OverWeight(OverOperand(f, 1));
  c.OverInput(OverResult(f));
  for (int d = kFirstSpatial; d < call.operand(0).rank(); ++d) {
    const int64_t in = call.results[0].dims[d], out = call.operand(0).dims[d];
    const Sliding window = SlidingOf(call, weight, d - kFirstSpatial);
    const ExprInterval region = Region(call, d, WindowShard());
    const int factor = f.Add(in);
    f.OverResult(d, factor);
    if (window.IsPointwise() && in == out && region.begin == WindowShard().begin) {
      f.OverOperand(0, d, factor);
    } else {
      f.OverWindow(0, d, factor, window.OutputsOf(region));
    }
  }
  KernelWhole(f, 1, weight);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> ConvDInputTypes(const OpCall& call) {
  return ListTypes(call, "input_size");
}

Attributes LocalConvDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = WithLocalDims(call, factors, cut, "input_size");
  SetGroups(call, factors, cut, Result(0), Operand(1), &local);
  const int rank = call.operand(0).rank();
  std::vector<Expr> crop_start;
  for (int d = kFirstSpatial; d < rank; ++d) {
    const int i = d - kFirstSpatial;
    // A gradient that is read through a window begins where the window of its first row begins.
    crop_start.push_back(
        IsWindowed(factors, cut, 0, d)
            ? SlidingOf(call, call.operand(1).dims, i).OffsetWithin(Region(call, d, ResultShard(d)))
            : Expr(SpatialEntry(call, "crop_start", i, 0)));
  }
  local.Set("padding", LocalPadding(call, factors, cut, 0, rank - kFirstSpatial));
  local.Set("crop_start", ToAttr(crop_start));
  return local;
}

absl::StatusOr<OpFactors> ConvDWeightFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& weight = call.results[0].dims;
  const Channels c(f, weight, call.operand(0).dims[0], Groups(call));
  c.OverOutput(OverOperand(f, 0));
  c.OverInput(OverOperand(f, 1));
  c.OverWeight(OverResult(f));
  for (int d = kFirstSpatial; d < call.operand(0).rank(); ++d) {
    const Sliding window = SlidingOf(call, weight, d - kFirstSpatial);
    const int64_t out = call.operand(0).dims[d];
    const int factor = f.Add(out);
    f.OverOperand(0, d, factor);
    if (window.IsPointwise() && call.operand(1).dims[d] == out) {
      f.OverOperand(1, d, factor);
    } else {
      f.OverWindow(1, d, factor, window.InputsOf(WindowShard()));
    }
    f.OverResult(d, f.AddWhole(weight[d]));
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> ConvDWeightTypes(const OpCall& call) {
  return ListTypes(call, "weight_size");
}

Attributes LocalConvDWeight(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = WithLocalDims(call, factors, cut, "weight_size");
  SetGroups(call, factors, cut, Operand(1), Result(0), &local);
  local.Set("padding", LocalPadding(call, factors, cut, 1, call.operand(1).rank() - kFirstSpatial));
  return local;
}

}  // namespace spmd::rules
