// SPDX-License-Identifier: Apache-2.0
// Convolution and its two gradients. One loop over (image, output channel, output position, input
// channel of the group, kernel position) is read in three directions.
#include <algorithm>
#include <cmath>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

struct Geometry {
  Dims stride, padding, dilation;
  int64_t groups = 1;
  int spatial = 0;
};

// The last `count` entries of a list attribute; a single entry stands for every dimension.
absl::StatusOr<Dims> Spatial(const OpArgs& args, absl::string_view name, int count) {
  const std::vector<int64_t> values = args.Ints(name);
  if (values.size() != 1 && static_cast<int>(values.size()) < count) {
    return args.Error(absl::StrCat("'", name, "' needs ", count, " entries"));
  }
  for (int64_t value : values) {
    if (value < -kMaxLiteralElements || value > kMaxLiteralElements) {
      return args.Error("an attribute out of range");
    }
  }
  if (values.size() == 1) return Dims(count, values[0]);
  return Dims(values.end() - count, values.end());
}

absl::StatusOr<Geometry> ReadGeometry(const OpArgs& args, int rank) {
  if (rank < 3) return args.Error("expected tensors of rank 3 or more");
  Geometry g;
  g.spatial = rank - 2;
  SPMD_ASSIGN_OR_RETURN(g.stride, Spatial(args, "stride", g.spatial));
  SPMD_ASSIGN_OR_RETURN(g.padding, Spatial(args, "padding", g.spatial));
  SPMD_ASSIGN_OR_RETURN(g.dilation, Spatial(args, "dilation", g.spatial));
  g.groups = args.IntOr("groups", 1);
  const auto positive = [](int64_t x) { return x > 0; };
  if (g.groups > kMaxLiteralElements) return args.Error("an attribute out of range");
  if (g.groups < 1 || !std::all_of(g.stride.begin(), g.stride.end(), positive) ||
      !std::all_of(g.dilation.begin(), g.dilation.end(), positive)) {
    return args.Error("stride, dilation and groups must be positive");
  }
  return g;
}

// Calls visit(input element, weight element, output element) for every product of a convolution
// from `in` [n, c, …] with `weight` [o, c/groups, …] to `out` [n, o, …]. `shift` is added to the
// padding: the window of output position p starts at p·stride − padding − shift.
template <typename Visit>
absl::Status ForProducts(const OpArgs& args, const Geometry& g, const Dims& in, const Dims& weight,
                         const Dims& out, const Dims& shift, const Visit& visit) {
  if (in.size() != out.size() || weight.size() != out.size() || in[0] != out[0] ||
      weight[0] != out[1] || weight[1] * g.groups != in[1] || out[1] % g.groups != 0) {
    return args.Error(absl::StrCat("input ", DimsToString(in), ", weight ", DimsToString(weight),
                                   " and output ", DimsToString(out), " do not fit"));
  }
  Dims window(weight.begin() + 1, weight.end());  // channel of the group, then kernel position
  const int64_t outputs = NumElements(out), products = NumElements(window);
  for (int64_t o = 0; o < outputs; ++o) {
    const Dims to = Unravel(o, out);
    for (int64_t w = 0; w < products; ++w) {
      const Dims place = Unravel(w, window);
      Dims from = to;
      from[1] = to[1] / (out[1] / g.groups) * weight[1] + place[0];
      bool inside = true;
      for (int d = 0; d < g.spatial; ++d) {
        int64_t& at = from[2 + d];
        at = to[2 + d] * g.stride[d] + place[1 + d] * g.dilation[d] - g.padding[d] - shift[d];
        inside = inside && at >= 0 && at < in[2 + d];
      }
      if (inside) visit(Ravel(from, in), to[1] * products + w, o);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Literals> Convolution(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const int rank = in->type.rank();
  SPMD_ASSIGN_OR_RETURN(const Literal* weight, args.operand(1, rank));
  SPMD_ASSIGN_OR_RETURN(const Geometry g, ReadGeometry(args, rank));
  if (args.BoolOr("transposed", false)) {
    return absl::UnimplementedError("interpreter: transposed convolution is not interpreted");
  }
  Dims dims = {in->type.dims[0], weight->type.dims[0]};
  for (int d = 0; d < g.spatial; ++d) {
    const int64_t reach = g.dilation[d] * (weight->type.dims[2 + d] - 1) + 1;
    const int64_t room = in->type.dims[2 + d] + 2 * g.padding[d] - reach;
    dims.push_back(room < 0 ? 0 : room / g.stride[d] + 1);
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  SPMD_RETURN_IF_ERROR(ForProducts(
      args, g, in->type.dims, weight->type.dims, dims, Dims(g.spatial, 0),
      [&](int64_t i, int64_t w, int64_t o) { out.data[o] += in->data[i] * weight->data[w]; }));
  if (const Literal* bias = args.optional(2)) {
    if (bias->type.dims != Dims{dims[1]}) return args.Error("the bias does not fit");
    for (size_t o = 0; o < out.data.size(); ++o) {
      out.data[o] += bias->data[Unravel(static_cast<int64_t>(o), dims)[1]];
    }
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> InputGradient(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  const int rank = grad->type.rank();
  SPMD_ASSIGN_OR_RETURN(const Literal* weight, args.operand(1, rank));
  SPMD_ASSIGN_OR_RETURN(const Geometry g, ReadGeometry(args, rank));
  SPMD_ASSIGN_OR_RETURN(const Dims size, Spatial(args, "input_size", g.spatial));
  SPMD_ASSIGN_OR_RETURN(const Dims crop, Spatial(args, "crop_start", g.spatial));
  Dims dims = {grad->type.dims[0], weight->type.dims[1] * g.groups};
  dims.insert(dims.end(), size.begin(), size.end());
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  SPMD_RETURN_IF_ERROR(ForProducts(
      args, g, dims, weight->type.dims, grad->type.dims, crop,
      [&](int64_t i, int64_t w, int64_t o) { out.data[i] += grad->data[o] * weight->data[w]; }));
  return One(std::move(out));
}

absl::StatusOr<Literals> WeightGradient(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  const int rank = grad->type.rank();
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(1, rank));
  SPMD_ASSIGN_OR_RETURN(const Geometry g, ReadGeometry(args, rank));
  SPMD_ASSIGN_OR_RETURN(const Dims size, Spatial(args, "weight_size", g.spatial));
  Dims dims = {grad->type.dims[1], in->type.dims[1] / g.groups};
  dims.insert(dims.end(), size.begin(), size.end());
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  SPMD_RETURN_IF_ERROR(ForProducts(
      args, g, in->type.dims, dims, grad->type.dims, Dims(g.spatial, 0),
      [&](int64_t i, int64_t w, int64_t o) { out.data[w] += grad->data[o] * in->data[i]; }));
  return One(std::move(out));
}

constexpr KernelRow kConvolutionKernels[] = {
    {"aten::convolution", Convolution},
    {"spmd::conv_dinput", InputGradient},
    {"spmd::conv_dweight", WeightGradient},
};
static_assert(SortedByOp(kConvolutionKernels));

}  // namespace

absl::Span<const KernelRow> ConvolutionKernels() { return kConvolutionKernels; }

}  // namespace spmd::reference
