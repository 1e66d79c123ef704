// SPDX-License-Identifier: Apache-2.0
// Every normalization is the same arithmetic over other dimensions: x minus its mean, times the
// reciprocal of its deviation, in two passes.
#include <limits>
#include <utility>

#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/reduced_dims.h"

namespace spmd::rules {
namespace {

// The dimensions that statistics are taken over, and their number of elements.
struct Span {
  std::vector<int64_t> dims;
  int64_t count;
};

Span SpanOf(const Dims& sizes, const std::vector<bool>& named) {
  return {DimList(named), CountOf(sizes, named)};
}

struct Statistics {
  ir::ValueId mean, var, rstd;  // keep their dimensions with size 1
  ir::ValueId centred;          // x - mean
};

Statistics StatisticsOf(Builder& b, ir::ValueId x, const Span& span, const Attr& eps) {
  const ir::ValueId mean = MeanOf(b, x, span.dims, span.count, /*keepdim=*/true);
  const ir::ValueId centred = b.Sub(x, mean);
  const ir::ValueId var = MeanOf(b, b.Square(centred), span.dims, span.count, /*keepdim=*/true);
  return {mean, var, b.Rsqrt(b.AddScalar(var, eps)), centred};
}

struct Standardised {
  ir::ValueId mean, rstd;  // keep their dimensions with size 1
  ir::ValueId x;
};

Standardised Standardise(Builder& b, ir::ValueId x, const Span& span, const Attr& eps) {
  const Statistics s = StatisticsOf(b, x, span, eps);
  return {s.mean, s.rstd, b.Mul(s.centred, s.rstd)};
}

// The gradient of Standardise, from the gradient of its result and the result `x`.
ir::ValueId StandardiseBackward(Builder& b, ir::ValueId grad, ir::ValueId x, ir::ValueId rstd,
                                const Span& span) {
  const ir::ValueId mean = MeanOf(b, grad, span.dims, span.count, /*keepdim=*/true);
  const ir::ValueId slope = MeanOf(b, b.Mul(grad, x), span.dims, span.count, /*keepdim=*/true);
  return b.Mul(b.Sub(b.Sub(grad, mean), b.Mul(x, slope)), rstd);
}

ir::ValueId Scaled(Builder& b, ir::ValueId v, ir::ValueId weight) {
  return weight == ir::kNoValue ? v : b.Mul(v, Upcast(b, weight));
}
ir::ValueId Shifted(Builder& b, ir::ValueId v, ir::ValueId bias) {
  return bias == ir::kNoValue ? v : b.Add(v, Upcast(b, bias));
}
// offset + v · factor in one pass. Affine takes an offset of v's size, ChannelAffine one per
// channel.
ir::ValueId Affine(Builder& b, ir::ValueId offset, ir::ValueId v, ir::ValueId factor) {
  return b.Call("aten::addcmul", {offset, v, factor}, {{"value", int64_t{1}}});
}
ir::ValueId ChannelAffine(Builder& b, ir::ValueId offset, ir::ValueId v, ir::ValueId factor) {
  return b.Call("spmd::channel_affine", {offset, v, factor});
}

ir::ValueId ViewAs(Builder& b, ir::ValueId v, const Dims& dims) {
  if (v == ir::kNoValue || b.type(v).dims == dims) return v;
  return b.View(v, std::vector<int64_t>(dims.begin(), dims.end()));
}

// A sum over no dimension is the value itself; an empty list of dims would mean all dimensions.
ir::ValueId SumOver(Builder& b, ir::ValueId v, std::vector<int64_t> dims) {
  return dims.empty() ? v : b.Sum(v, std::move(dims), /*keepdim=*/false);
}

// Collects the results in order. A result that the output mask leaves out has no value.
class Results {
 public:
  Results(Builder& b, const ir::Graph& from, const ir::Node& node)
      : b_(b), from_(from), node_(node) {}
  bool Wants(int k) const {
    const Attr* mask = node_.attributes.Find("output_mask");
    const auto* wanted = mask ? std::get_if<std::vector<bool>>(mask) : nullptr;
    return wanted == nullptr || (*wanted)[k];
  }
  const Dims& dims(int k) const { return from_.type(node_.first_result + k).dims; }
  // Exactly one of these is called per result, in ascending order.
  void Set(ir::ValueId v) { values_.push_back(ViewAs(b_, v, dims(next()))); }
  void SetAbsent() { values_.push_back(ir::kNoValue); }
  void SetEmpty() { values_.push_back(EmptyResult(b_, from_.type(node_.first_result + next()))); }
  Values Take() { return AsResultsOf(b_, from_, node_, std::move(values_)); }

 private:
  int next() const { return static_cast<int>(values_.size()); }
  Builder& b_;
  const ir::Graph& from_;
  const ir::Node& node_;
  Values values_;
};

// The trailing dimensions of normalized_shape, and the rows before them.
struct NormalizedRows {
  NormalizedRows(const Dims& sizes, const ir::Node& node) {
    const size_t whole = node.attributes.GetInts("normalized_shape").size();
    std::vector<bool> named(sizes.size(), false);
    for (size_t d = 0; d < sizes.size(); ++d) {
      named[d] = d + whole >= sizes.size();
      if (!named[d]) rows.push_back(static_cast<int64_t>(d));
    }
    span = SpanOf(sizes, named);
  }
  Span span;
  std::vector<int64_t> rows;
};

Attr EpsOf(const ir::Node& node, DType computed_in) {
  const double epsilon = computed_in == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                                    : std::numeric_limits<float>::epsilon();
  return NumberOr(node, "eps", epsilon);
}

}  // namespace

ValuesOrStatus DecomposeLayerNorm(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const ir::ValueId x = Upcast(b, operands[0]);
  const NormalizedRows rows(b.type(x).dims, node);
  const Standardised s = Standardise(b, x, rows.span, EpsOf(node, b.type(x).dtype));
  const ir::ValueId out =
      Shifted(b, Scaled(b, s.x, OptionalOperand(operands, 1)), OptionalOperand(operands, 2));
  return AsResultsOf(b, from, node, {out, s.mean, s.rstd});
}

ValuesOrStatus DecomposeLayerNormBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                          Operands operands) {
  const ir::ValueId grad = Upcast(b, operands[0]), rstd = Upcast(b, operands[3]);
  const ir::ValueId x = b.Mul(b.Sub(Upcast(b, operands[1]), Upcast(b, operands[2])), rstd);
  const NormalizedRows rows(b.type(x).dims, node);
  Results results(b, from, node);
  if (results.Wants(0)) {
    const ir::ValueId scaled = Scaled(b, grad, OptionalOperand(operands, 4));
    results.Set(StandardiseBackward(b, scaled, x, rstd, rows.span));
  } else {
    results.SetAbsent();
  }
  results.Wants(1) ? results.Set(SumOver(b, b.Mul(grad, x), rows.rows)) : results.SetAbsent();
  results.Wants(2) ? results.Set(SumOver(b, grad, rows.rows)) : results.SetAbsent();
  return results.Take();
}

namespace {

// [n, c, …] as [n, g, c/g, …], with statistics over all dimensions from the third on.
struct NormalizedGroups {
  NormalizedGroups(const Dims& image, const ir::Node& node)
      : n(image[0]), g(node.attributes.GetInt("group")) {
    split = {n, g, image[1] / g};
    split.insert(split.end(), image.begin() + 2, image.end());
    statistics = {n, g};
    statistics.resize(split.size(), 1);
    channels = {1, g, image[1] / g};
    channels.resize(split.size(), 1);
    std::vector<bool> named(split.size(), true);
    named[0] = named[1] = false;
    span = SpanOf(split, named);
    for (size_t d = 0; d < split.size(); ++d) {
      if (d != 1 && d != 2) all_but_channels.push_back(static_cast<int64_t>(d));
    }
  }
  int64_t n, g;
  Dims split, statistics, channels;
  Span span;
  std::vector<int64_t> all_but_channels;
};

}  // namespace

ValuesOrStatus DecomposeGroupNorm(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const NormalizedGroups groups(b.type(operands[0]).dims, node);
  const ir::ValueId x = ViewAs(b, Upcast(b, operands[0]), groups.split);
  const Standardised s = Standardise(b, x, groups.span, EpsOf(node, b.type(x).dtype));
  const ir::ValueId weight = ViewAs(b, OptionalOperand(operands, 1), groups.channels);
  const ir::ValueId bias = ViewAs(b, OptionalOperand(operands, 2), groups.channels);
  Results results(b, from, node);
  results.Set(Shifted(b, Scaled(b, s.x, weight), bias));
  results.Set(s.mean);
  results.Set(s.rstd);
  return results.Take();
}

ValuesOrStatus DecomposeGroupNormBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                          Operands operands) {
  const NormalizedGroups groups(b.type(operands[0]).dims, node);
  const ir::ValueId grad = ViewAs(b, Upcast(b, operands[0]), groups.split);
  const ir::ValueId mean = ViewAs(b, Upcast(b, operands[2]), groups.statistics);
  const ir::ValueId rstd = ViewAs(b, Upcast(b, operands[3]), groups.statistics);
  const ir::ValueId x = b.Mul(b.Sub(ViewAs(b, Upcast(b, operands[1]), groups.split), mean), rstd);
  const ir::ValueId weight = ViewAs(b, OptionalOperand(operands, 4), groups.channels);
  Results results(b, from, node);
  if (results.Wants(0)) {
    results.Set(StandardiseBackward(b, Scaled(b, grad, weight), x, rstd, groups.span));
  } else {
    results.SetAbsent();
  }
  results.Wants(1) ? results.Set(SumOver(b, b.Mul(grad, x), groups.all_but_channels))
                   : results.SetAbsent();
  results.Wants(2) ? results.Set(SumOver(b, grad, groups.all_but_channels)) : results.SetAbsent();
  return results.Take();
}

namespace {

// All dimensions but the channels, and the shape to which a vector of channels is viewed to
// broadcast.
struct NormalizedChannels {
  explicit NormalizedChannels(const Dims& image) : per_channel(image.size(), 1) {
    std::vector<bool> named(image.size(), true);
    named[1] = false;
    per_channel[1] = image[1];
    span = SpanOf(image, named);
  }
  Span span;
  Dims per_channel;
};

ir::ValueId RunningRstd(Builder& b, ir::ValueId running_var, const Attr& eps) {
  return b.Rsqrt(b.AddScalar(Upcast(b, running_var), eps));
}

// (1 - momentum) · running + momentum · batch
ir::ValueId Updated(Builder& b, ir::ValueId running, ir::ValueId batch, const Attr& momentum) {
  const std::optional<double> known = Known(momentum);
  const ir::ValueId wide = Upcast(b, running);
  const ir::ValueId kept =
      known ? b.MulScalar(wide, 1 - *known) : b.Mul(wide, b.OneMinus(momentum));
  return b.Add(kept, b.MulScalar(batch, momentum));
}

}  // namespace

namespace {

struct ChannelStatistics {
  ir::ValueId mean, squares;  // squares: the sum of squared distances from the mean
};

// For f32, devices exchange the sum of their elements and of the squares of these in one
// all-reduce. The squared mean is then subtracted from the mean square in double precision, where a
// mean of 10⁵ deviations loses nothing that single precision would show. Double precision itself
// has no wider type and takes two passes.
ChannelStatistics ChannelStatisticsOf(Builder& b, ir::ValueId x, const Span& span) {
  const double n = static_cast<double>(span.count);
  if (b.type(x).dtype != DType::kF32) {
    const ir::ValueId mean = MeanOf(b, x, span.dims, span.count, /*keepdim=*/false);
    return {mean, b.Call("spmd::channel_squares", {x, mean})};
  }
  const std::vector<ir::ValueId> moments = b.CallAll("spmd::channel_moments", {x});
  // These two ops change no value. They are not linear, so both moments are reduced here, together.
  const ir::ValueId sum = b.AddScalar(moments[0], 0.0);
  const ir::ValueId squares = b.Call("aten::clamp_min", {moments[1]}, {{"min", 0.0}});
  const ir::ValueId mean = b.DivScalar(sum, n);
  const ir::ValueId distances =
      b.Call("aten::clamp_min", {b.Sub(squares, b.Mul(mean, sum))}, {{"min", 0.0}});
  return {b.Cast(mean, DType::kF32), b.Cast(distances, DType::kF32)};
}

}  // namespace

// Statistics are vectors of channels. The image is read once for the statistics and once for the
// result, and no other value of its size is created.
ValuesOrStatus DecomposeBatchNorm(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const ir::ValueId x = Upcast(b, operands[0]);
  const NormalizedChannels channels(b.type(x).dims);
  const Attr eps = NumberOr(node, "eps", 1e-5);
  const ir::ValueId running_mean = OptionalOperand(operands, 3);
  const bool batch = running_mean == ir::kNoValue || node.attributes.GetBoolOr("training", true);
  const ir::ValueId running_var = OptionalOperand(operands, 4);
  const double n = static_cast<double>(channels.span.count);
  ir::ValueId mean, rstd, squares = ir::kNoValue;
  if (batch) {
    const ChannelStatistics statistics = ChannelStatisticsOf(b, x, channels.span);
    mean = statistics.mean;
    squares = statistics.squares;
    rstd = b.Rsqrt(b.AddScalar(b.DivScalar(squares, n), eps));
  } else {
    mean = Upcast(b, running_mean);
    rstd = RunningRstd(b, running_var, eps);
  }
  const ir::ValueId scale = Scaled(b, rstd, OptionalOperand(operands, 1));
  const ir::ValueId shift = Shifted(b, b.Neg(b.Mul(mean, scale)), OptionalOperand(operands, 2));
  Results results(b, from, node);
  results.Set(ChannelAffine(b, ViewAs(b, shift, channels.per_channel), x,
                            ViewAs(b, scale, channels.per_channel)));
  batch ? results.Set(mean) : results.SetEmpty();
  batch ? results.Set(rstd) : results.SetEmpty();
  if (node.num_results == 3) return results.Take();
  if (!batch) {
    results.Set(running_mean);
    results.Set(running_var);
    return results.Take();
  }
  const Attr momentum = NumberOr(node, "momentum", 0.1);
  results.Set(Updated(b, running_mean, mean, momentum));
  results.Set(Updated(b, running_var, b.DivScalar(squares, n - 1), momentum));
  return results.Take();
}

ValuesOrStatus DecomposeBatchNormBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                          Operands operands) {
  const ir::ValueId grad = Upcast(b, operands[0]), x = Upcast(b, operands[1]);
  const NormalizedChannels channels(b.type(grad).dims);
  const bool train = node.attributes.GetBoolOr("train", true);
  const ir::ValueId mean = Upcast(b, operands[train ? 5 : 3]);
  const ir::ValueId rstd =
      train ? Upcast(b, operands[6]) : RunningRstd(b, operands[4], NumberOr(node, "eps", 1e-5));
  const ir::ValueId scale = Scaled(b, rstd, operands[2]);
  // The sums of grad and of grad · (x - mean).
  const std::vector<ir::ValueId> sums = b.CallAll("spmd::channel_products", {grad, x, mean});
  const auto broadcast = [&](ir::ValueId v) { return ViewAs(b, v, channels.per_channel); };
  Results results(b, from, node);
  if (!results.Wants(0)) {
    results.SetAbsent();
  } else if (!train) {
    results.Set(b.Mul(grad, broadcast(scale)));
  } else {
    // scale · (grad - mean(grad) - (x - mean) · slope), slope = rstd² · mean(grad · (x - mean)),
    // written as offset + x · along_x + grad · scale, where everything but the images is per
    // channel.
    const double n = static_cast<double>(channels.span.count);
    const ir::ValueId slope = b.Mul(b.MulScalar(sums[1], -1 / n), b.Square(rstd));
    const ir::ValueId along_x = b.Mul(slope, scale);
    const ir::ValueId offset =
        b.Sub(b.Mul(b.MulScalar(sums[0], -1 / n), scale), b.Mul(along_x, mean));
    const ir::ValueId constant_and_x = ChannelAffine(b, broadcast(offset), x, broadcast(along_x));
    results.Set(Affine(b, constant_and_x, grad, broadcast(scale)));
  }
  results.Wants(1) ? results.Set(b.Mul(sums[1], rstd)) : results.SetAbsent();
  results.Wants(2) ? results.Set(sums[0]) : results.SetAbsent();
  return results.Take();
}

// All dimensions but the one along which each slice has its norm.
static std::vector<int64_t> DimsOfNorm(const ir::Graph& from, const ir::Node& node, int rank) {
  std::vector<bool> named(rank, true);
  named[OpCall::Of(from, node).Dim("dim", rank)] = false;
  return DimList(named);
}

// v · g / |v|, and the norms |v|, which keep their dimensions with size 1.
ValuesOrStatus DecomposeWeightNorm(Builder& b, const ir::Graph& from, const ir::Node& node,
                                   Operands operands) {
  const std::vector<int64_t> dims = DimsOfNorm(from, node, b.rank(operands[0]));
  if (dims.empty()) return Values{};
  const ir::ValueId v = Upcast(b, operands[0]), g = Upcast(b, operands[1]);
  const ir::ValueId norm = NormOf(b, v, 2.0, dims, /*keepdim=*/true);
  return AsResultsOf(b, from, node, {b.Mul(v, b.Div(g, norm)), norm});
}

ValuesOrStatus DecomposeWeightNormBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                           Operands operands) {
  const std::vector<int64_t> dims = DimsOfNorm(from, node, b.rank(operands[0]));
  if (dims.empty()) return Values{};
  const ir::ValueId grad = Upcast(b, operands[0]), v = Upcast(b, operands[1]);
  const ir::ValueId g = Upcast(b, operands[2]), norm = Upcast(b, operands[3]);
  const ir::ValueId along = b.Sum(b.Mul(grad, v), dims, /*keepdim=*/true);
  const ir::ValueId across = b.Sub(grad, b.Mul(v, b.Div(along, b.Square(norm))));
  return AsResultsOf(b, from, node, {b.Mul(b.Div(g, norm), across), b.Div(along, norm)});
}

}  // namespace spmd::rules
