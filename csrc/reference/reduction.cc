// SPDX-License-Identifier: Apache-2.0
// Ops that read lines or blocks of elements: sums, extrema, softmax, norms.
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

using Elements = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();

// The dimensions that an op reduces: `dim` as an integer or a list; all of them when it is absent,
// none or empty.
absl::StatusOr<std::vector<bool>> Reduced(const OpArgs& args, int rank) {
  std::vector<bool> reduced(rank, false);
  std::vector<int64_t> dims;
  if (args.Has("dim")) dims = args.Ints("dim");
  if (dims.empty()) return std::vector<bool>(rank, true);
  for (int64_t dim : dims) {
    SPMD_ASSIGN_OR_RETURN(const int d, args.Dim(dim, rank));
    if (rank > 0) reduced[d] = true;
  }
  return reduced;
}

// Per element of the result, the operand's elements that are reduced to it, in order.
struct Blocks {
  Dims dims;  // of the result
  std::vector<Elements> blocks;
};

absl::StatusOr<Blocks> GatherBlocks(const OpArgs& args, const Literal& in) {
  SPMD_ASSIGN_OR_RETURN(const std::vector<bool> reduced, Reduced(args, in.type.rank()));
  const bool keep = args.BoolOr("keepdim", false);
  Blocks out;
  Dims kept;  // the result's dims with keepdim
  for (int d = 0; d < in.type.rank(); ++d) {
    kept.push_back(reduced[d] ? 1 : in.type.dims[d]);
    if (!reduced[d] || keep) out.dims.push_back(kept.back());
  }
  out.blocks.resize(NumElements(kept));
  for (size_t i = 0; i < in.data.size(); ++i) {
    const Dims index = Unravel(static_cast<int64_t>(i), in.type.dims);
    out.blocks[RavelBroadcast(index, kept)].push_back(in.data[i]);
  }
  return out;
}

double Sum(const Elements& x, const OpArgs&) {
  double sum = 0;
  for (double e : x) sum += e;
  return sum;
}
double Prod(const Elements& x, const OpArgs&) {
  double product = 1;
  for (double e : x) product *= e;
  return product;
}
double Mean(const Elements& x, const OpArgs& args) { return Sum(x, args) / x.size(); }
double Max(const Elements& x, const OpArgs&) {
  double top = -kInf;
  for (double e : x) top = std::isnan(e) || std::isnan(top) ? top + e : std::max(top, e);
  return top;
}
double Min(const Elements& x, const OpArgs&) {
  double bottom = kInf;
  for (double e : x)
    bottom = std::isnan(e) || std::isnan(bottom) ? bottom + e : std::min(bottom, e);
  return bottom;
}
double Any(const Elements& x, const OpArgs&) {
  return std::any_of(x.begin(), x.end(), [](double e) { return e != 0; });
}
double All(const Elements& x, const OpArgs&) {
  return std::all_of(x.begin(), x.end(), [](double e) { return e != 0; });
}
double LogSumExp(const Elements& x, const OpArgs& args) {
  const double top = Max(x, args);
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (double e : x) sum += std::exp(e - top);
  return top + std::log(sum);
}
double Variance(const Elements& x, const OpArgs& args) {
  const double mean = Mean(x, args);
  double squares = 0;
  for (double e : x) squares += (e - mean) * (e - mean);
  return squares / std::max(0.0, x.size() - args.DoubleOr("correction", 1));
}
double Deviation(const Elements& x, const OpArgs& args) { return std::sqrt(Variance(x, args)); }
double Norm(const Elements& x, const OpArgs& args) {
  const double p = args.DoubleOr("ord", args.DoubleOr("p", 2));
  double sum = 0, top = 0;
  for (double e : x) {
    top = std::max(top, std::abs(e));
    sum += p == 0 ? e != 0 : std::pow(std::abs(e), p);
  }
  return p == kInf ? top : p == 0 ? sum : std::pow(sum, 1 / p);
}
// The first of equal elements wins.
double ArgMax(const Elements& x, const OpArgs&) {
  return std::max_element(x.begin(), x.end()) - x.begin();
}
double ArgMin(const Elements& x, const OpArgs&) {
  return std::min_element(x.begin(), x.end()) - x.begin();
}

using Fold = double (*)(const Elements&, const OpArgs&);

absl::StatusOr<Literal> Folded(const OpArgs& args, int result, const Blocks& blocks, Fold fold) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(result, blocks.dims));
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = fold(blocks.blocks[i], args);
  return out;
}

template <Fold fold>
absl::StatusOr<Literals> Reduce(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Blocks blocks, GatherBlocks(args, *in));
  return One(Folded(args, 0, blocks, fold));
}

// Computes two results from the same blocks: values and indices, minimum and maximum, variance and
// mean.
template <Fold first, Fold second>
absl::StatusOr<Literals> ReduceTwice(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Blocks blocks, GatherBlocks(args, *in));
  SPMD_ASSIGN_OR_RETURN(Literal a, Folded(args, 0, blocks, first));
  SPMD_ASSIGN_OR_RETURN(Literal b, Folded(args, 1, blocks, second));
  return Literals{std::move(a), std::move(b)};
}

// Computes each line of the result along `dim` from the operands' lines (all of one shape):
// lines[k] is operand k's line, and the result goes into lines[0].
using LineFn = void (*)(std::vector<Elements>& lines);

template <int count, LineFn function>
absl::StatusOr<Literals> AlongDim(const OpArgs& args) {
  std::vector<const Literal*> in;
  for (int k = 0; k < count; ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* operand, args.operand(k));
    in.push_back(operand);
    if (in[k]->type.dims != in[0]->type.dims) return args.Error("operands of different sizes");
  }
  const Dims& dims = in[0]->type.dims;
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in[0]->type.rank()));
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  const int64_t length = dims.empty() ? 1 : dims[dim];
  for (size_t i = 0; i < out.data.size(); ++i) {
    Dims index = Unravel(static_cast<int64_t>(i), dims);
    if (!dims.empty() && index[dim] != 0) continue;
    std::vector<Elements> lines(count, Elements(length));
    const auto at = [&](int64_t e) {
      if (!dims.empty()) index[dim] = e;
      return Ravel(index, dims);
    };
    for (int k = 0; k < count; ++k) {
      for (int64_t e = 0; e < length; ++e) lines[k][e] = in[k]->data[at(e)];
    }
    function(lines);
    for (int64_t e = 0; e < length; ++e) out.data[at(e)] = lines[0][e];
  }
  return One(std::move(out));
}

void LogSoftmaxLine(std::vector<Elements>& lines) {
  const double top = *std::max_element(lines[0].begin(), lines[0].end());
  double sum = 0;
  for (double e : lines[0]) sum += std::exp(e - top);
  for (double& e : lines[0]) e = e - top - std::log(sum);
}
void SoftmaxLine(std::vector<Elements>& lines) {
  LogSoftmaxLine(lines);
  for (double& e : lines[0]) e = std::exp(e);
}
// lines[0] is the gradient, lines[1] the output.
void SoftmaxBackwardLine(std::vector<Elements>& lines) {
  double dot = 0;
  for (size_t i = 0; i < lines[0].size(); ++i) dot += lines[0][i] * lines[1][i];
  for (size_t i = 0; i < lines[0].size(); ++i) lines[0][i] = lines[1][i] * (lines[0][i] - dot);
}
void LogSoftmaxBackwardLine(std::vector<Elements>& lines) {
  double sum = 0;
  for (double e : lines[0]) sum += e;
  for (size_t i = 0; i < lines[0].size(); ++i) lines[0][i] -= std::exp(lines[1][i]) * sum;
}
void CumSumLine(std::vector<Elements>& lines) {
  double sum = 0;
  for (double& e : lines[0]) e = sum += e;
}
void CumProdLine(std::vector<Elements>& lines) {
  double product = 1;
  for (double& e : lines[0]) e = product *= e;
}

// input, weight?, bias?; normalized_shape, eps → out, mean, rstd.
absl::StatusOr<Literals> LayerNorm(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const int inner = static_cast<int>(args.Ints("normalized_shape").size());
  const int outer = in->type.rank() - inner;
  if (inner == 0 || outer < 0) return args.Error("normalized_shape does not fit the input");
  const auto sizes = absl::MakeConstSpan(in->type.dims);
  const int64_t line = NumElements(sizes.subspan(outer));
  Dims stat_dims = in->type.dims;
  std::fill(stat_dims.begin() + outer, stat_dims.end(), 1);
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, sizes));
  SPMD_ASSIGN_OR_RETURN(Literal mean, args.Make(1, stat_dims));
  SPMD_ASSIGN_OR_RETURN(Literal rstd, args.Make(2, stat_dims));
  const Literal* weight = args.optional(1);
  const Literal* bias = args.optional(2);
  for (const Literal* scale : {weight, bias}) {
    if (scale != nullptr && static_cast<int64_t>(scale->data.size()) != line) {
      return args.Error("weight or bias does not fit normalized_shape");
    }
  }
  for (size_t row = 0; row < mean.data.size(); ++row) {
    const double* x = in->data.data() + row * line;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < line; ++i) sum += x[i];
    mean.data[row] = sum / line;
    for (int64_t i = 0; i < line; ++i) squares += (x[i] - sum / line) * (x[i] - sum / line);
    rstd.data[row] = 1 / std::sqrt(squares / line + args.Double("eps"));
    for (int64_t i = 0; i < line; ++i) {
      out.data[row * line + i] =
          (x[i] - mean.data[row]) * rstd.data[row] * (weight == nullptr ? 1 : weight->data[i]) +
          (bias == nullptr ? 0 : bias->data[i]);
    }
  }
  return Literals{std::move(out), std::move(mean), std::move(rstd)};
}

// Sums over images [n, c, …] to sums [c]: calls add(images, i, mean of the channel of element i,
// channel, sums) for each element i.
template <typename Add>
absl::StatusOr<Literals> ChannelSums(const OpArgs& args, int num_images, int num_sums, Add add) {
  std::vector<const Literal*> images;
  for (int k = 0; k < num_images; ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* image, args.operand(k));
    if (image->type.rank() < 2 || image->type.dims != args.optional(0)->type.dims) {
      return args.Error("images [n, c, ...] of one shape");
    }
    images.push_back(image);
  }
  SPMD_ASSIGN_OR_RETURN(const Literal* mean, args.operand(num_images, 1));
  const Dims& dims = images[0]->type.dims;
  if (mean->type.dims[0] != dims[1]) return args.Error("a mean per channel");
  Literals sums;
  for (int k = 0; k < num_sums; ++k) {
    SPMD_ASSIGN_OR_RETURN(Literal sum, args.Make(k, mean->type.dims));
    sums.push_back(std::move(sum));
  }
  for (size_t i = 0; i < images[0]->data.size(); ++i) {
    const int64_t channel = Unravel(static_cast<int64_t>(i), dims)[1];
    add(images, i, mean->data[channel], channel, sums);
  }
  return sums;
}

absl::StatusOr<Literals> ChannelSquares(const OpArgs& args) {
  return ChannelSums(
      args, 1, 1, [](const auto& images, size_t i, double mean, int64_t channel, Literals& sums) {
        const double distance = images[0]->data[i] - mean;
        sums[0].data[channel] += distance * distance;
      });
}

absl::StatusOr<Literals> ChannelProducts(const OpArgs& args) {
  return ChannelSums(
      args, 2, 2, [](const auto& images, size_t i, double mean, int64_t channel, Literals& sums) {
        sums[0].data[channel] += images[0]->data[i];
        sums[1].data[channel] += images[0]->data[i] * (images[1]->data[i] - mean);
      });
}

absl::StatusOr<Literals> ChannelMoments(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* x, args.operand(0));
  if (x->type.rank() < 2) return args.Error("images [n, c, ...]");
  Literals sums;
  for (int k = 0; k < 2; ++k) {
    SPMD_ASSIGN_OR_RETURN(Literal sum, args.Make(k, {x->type.dims[1]}));
    sums.push_back(std::move(sum));
  }
  for (size_t i = 0; i < x->data.size(); ++i) {
    const int64_t channel = Unravel(static_cast<int64_t>(i), x->type.dims)[1];
    sums[0].data[channel] += x->data[i];
    sums[1].data[channel] += x->data[i] * x->data[i];
  }
  return sums;
}

constexpr KernelRow kReductionKernels[] = {
    {"aten::_log_softmax", AlongDim<1, LogSoftmaxLine>},
    {"aten::_log_softmax_backward_data", AlongDim<2, LogSoftmaxBackwardLine>},
    {"aten::_softmax", AlongDim<1, SoftmaxLine>},
    {"aten::_softmax_backward_data", AlongDim<2, SoftmaxBackwardLine>},
    {"aten::all", Reduce<All>},
    {"aten::all.dim", Reduce<All>},
    {"aten::all.dims", Reduce<All>},
    {"aten::amax", Reduce<Max>},
    {"aten::amin", Reduce<Min>},
    {"aten::aminmax", ReduceTwice<Min, Max>},
    {"aten::any", Reduce<Any>},
    {"aten::any.dim", Reduce<Any>},
    {"aten::any.dims", Reduce<Any>},
    {"aten::argmax", Reduce<ArgMax>},
    {"aten::argmin", Reduce<ArgMin>},
    {"aten::cumprod", AlongDim<1, CumProdLine>},
    {"aten::cumsum", AlongDim<1, CumSumLine>},
    {"aten::linalg_vector_norm", Reduce<Norm>},
    {"aten::logsumexp", Reduce<LogSumExp>},
    {"aten::max", Reduce<Max>},
    {"aten::max.dim", ReduceTwice<Max, ArgMax>},
    {"aten::mean", Reduce<Mean>},
    {"aten::mean.dim", Reduce<Mean>},
    {"aten::min", Reduce<Min>},
    {"aten::min.dim", ReduceTwice<Min, ArgMin>},
    {"aten::native_layer_norm", LayerNorm},
    {"aten::norm.ScalarOpt_dim", Reduce<Norm>},
    {"aten::prod", Reduce<Prod>},
    {"aten::prod.dim_int", Reduce<Prod>},
    {"aten::std.correction", Reduce<Deviation>},
    {"aten::sum", Reduce<Sum>},
    {"aten::sum.dim_IntList", Reduce<Sum>},
    {"aten::var.correction", Reduce<Variance>},
    {"aten::var_mean.correction", ReduceTwice<Variance, Mean>},
    {"spmd::channel_moments", ChannelMoments},
    {"spmd::channel_products", ChannelProducts},
    {"spmd::channel_squares", ChannelSquares},
};
static_assert(SortedByOp(kReductionKernels));

}  // namespace

absl::Span<const KernelRow> ReductionKernels() { return kReductionKernels; }

}  // namespace spmd::reference
