// SPDX-License-Identifier: Apache-2.0
// Batch normalization and its gradient. The statistics of each channel are taken over batch and
// space.
#include <cmath>
#include <utility>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// The channels of a tensor x [n, c, …].
struct Channels {
  int64_t count = 0;  // number of channels
  int64_t inner = 1;  // consecutive elements of one channel
  int64_t each = 0;   // all elements of one channel

  static absl::StatusOr<Channels> Of(const OpArgs& args, const Literal& x) {
    if (x.type.rank() < 2) return args.Error("the input has no channels");
    Channels c;
    c.count = x.type.dims[1];
    for (int d = 2; d < x.type.rank(); ++d) c.inner *= x.type.dims[d];
    c.each = x.type.dims[0] * c.inner;
    return c;
  }
  int64_t At(size_t i) const { return static_cast<int64_t>(i) / inner % count; }
};

// Operand k with one element per channel, or null if it is absent.
absl::StatusOr<const Literal*> PerChannel(const OpArgs& args, int k, const Channels& channels) {
  const Literal* x = args.optional(k);
  if (x != nullptr && x->type.dims != Dims{channels.count}) {
    return args.Error(absl::StrCat("operand ", k, " has not one element per channel"));
  }
  return x;
}
absl::StatusOr<const Literal*> NeedsPerChannel(const OpArgs& args, int k, const Channels& c) {
  SPMD_ASSIGN_OR_RETURN(const Literal* x, PerChannel(args, k, c));
  if (x == nullptr) return args.operand(k);
  return x;
}

struct Statistics {
  std::vector<double> mean, variance;  // the population variance
};

Statistics Measure(const Literal& x, const Channels& c) {
  Statistics s{std::vector<double>(c.count), std::vector<double>(c.count)};
  for (size_t i = 0; i < x.data.size(); ++i) s.mean[c.At(i)] += x.data[i] / c.each;
  for (size_t i = 0; i < x.data.size(); ++i) {
    const double off = x.data[i] - s.mean[c.At(i)];
    s.variance[c.At(i)] += off * off / c.each;
  }
  return s;
}

// The operands are input, weight, bias and, if `running`, the running mean and variance. If
// `functional`, the new running values are results too.
template <bool running, bool functional>
absl::StatusOr<Literals> BatchNorm(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* x, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Channels c, Channels::Of(args, *x));
  SPMD_ASSIGN_OR_RETURN(const Literal* weight, PerChannel(args, 1, c));
  SPMD_ASSIGN_OR_RETURN(const Literal* bias, PerChannel(args, 2, c));
  const Literal *old_mean = nullptr, *old_variance = nullptr;
  const bool training = args.BoolOr("training", false);
  if (running) {
    SPMD_ASSIGN_OR_RETURN(old_mean, PerChannel(args, 3, c));
    SPMD_ASSIGN_OR_RETURN(old_variance, PerChannel(args, 4, c));
  }
  const bool known = old_mean != nullptr && old_variance != nullptr;
  if ((!training || functional) && !known) return args.Error("running statistics are absent");
  const Statistics s = training ? Measure(*x, c) : Statistics{old_mean->data, old_variance->data};
  const double eps = args.Double("eps"), momentum = args.Double("momentum");

  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, x->type.dims));
  for (size_t i = 0; i < x->data.size(); ++i) {
    const int64_t k = c.At(i);
    const double normal = (x->data[i] - s.mean[k]) / std::sqrt(s.variance[k] + eps);
    out.data[i] =
        normal * (weight == nullptr ? 1 : weight->data[k]) + (bias == nullptr ? 0 : bias->data[k]);
  }
  Literals results;
  results.push_back(std::move(out));
  const Dims saved = training ? Dims{c.count} : Dims{0};
  SPMD_ASSIGN_OR_RETURN(Literal mean, args.Make(1, saved));
  SPMD_ASSIGN_OR_RETURN(Literal inverse, args.Make(2, saved));
  for (size_t k = 0; k < mean.data.size(); ++k) {
    mean.data[k] = s.mean[k];
    inverse.data[k] = 1 / std::sqrt(s.variance[k] + eps);
  }
  results.push_back(std::move(mean));
  results.push_back(std::move(inverse));
  if (!functional) return results;
  SPMD_ASSIGN_OR_RETURN(Literal new_mean, args.Make(3, {c.count}));
  SPMD_ASSIGN_OR_RETURN(Literal new_variance, args.Make(4, {c.count}));
  const double unbiased = c.each > 1 ? static_cast<double>(c.each) / (c.each - 1) : 1;
  const double share = training ? momentum : 0;
  for (int64_t k = 0; k < c.count; ++k) {
    new_mean.data[k] = (1 - share) * old_mean->data[k] + share * s.mean[k];
    new_variance.data[k] = (1 - share) * old_variance->data[k] + share * s.variance[k] * unbiased;
  }
  results.push_back(std::move(new_mean));
  results.push_back(std::move(new_variance));
  return results;
}

// The mean and inverse deviation that the forward op used: the saved ones in training, else the
// running ones.
absl::StatusOr<Statistics> Used(const OpArgs& args, const Channels& c, bool train) {
  SPMD_ASSIGN_OR_RETURN(const Literal* mean, NeedsPerChannel(args, train ? 5 : 3, c));
  SPMD_ASSIGN_OR_RETURN(const Literal* spread, NeedsPerChannel(args, train ? 6 : 4, c));
  Statistics used{mean->data, spread->data};
  if (train) return used;
  for (double& v : used.variance) v = 1 / std::sqrt(v + args.Double("eps"));
  return used;
}

// The operands are the gradient, input, weight, and the running and saved statistics.
absl::StatusOr<Literals> BatchNormBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* x, args.operand(1));
  SPMD_ASSIGN_OR_RETURN(const Channels c, Channels::Of(args, *x));
  if (grad->type.dims != x->type.dims) return args.Error("gradient and input do not agree");
  SPMD_ASSIGN_OR_RETURN(const Literal* weight, PerChannel(args, 2, c));
  const bool train = args.BoolOr("train", true);
  SPMD_ASSIGN_OR_RETURN(const Statistics used, Used(args, c, train));
  const std::vector<bool> wanted = args.Bools("output_mask");
  if (wanted.size() != 3) return args.Error("output_mask has three entries");

  std::vector<double> sum(c.count), product(c.count);
  const auto normal = [&](size_t i) {
    return (x->data[i] - used.mean[c.At(i)]) * used.variance[c.At(i)];
  };
  for (size_t i = 0; i < x->data.size(); ++i) {
    sum[c.At(i)] += grad->data[i];
    product[c.At(i)] += grad->data[i] * normal(i);
  }
  const auto make = [&](int k, const Dims& dims) {
    return wanted[k] ? args.Make(k, dims) : args.Blank(k);
  };
  SPMD_ASSIGN_OR_RETURN(Literal dx, make(0, x->type.dims));
  SPMD_ASSIGN_OR_RETURN(Literal dweight, make(1, {c.count}));
  SPMD_ASSIGN_OR_RETURN(Literal dbias, make(2, {c.count}));
  for (size_t i = 0; wanted[0] && i < dx.data.size(); ++i) {
    const int64_t k = c.At(i);
    const double through = train ? (sum[k] + normal(i) * product[k]) / c.each : 0;
    dx.data[i] =
        (grad->data[i] - through) * used.variance[k] * (weight == nullptr ? 1 : weight->data[k]);
  }
  if (wanted[1]) dweight.data = product;
  if (wanted[2]) dbias.data = sum;
  return Literals{std::move(dx), std::move(dweight), std::move(dbias)};
}

constexpr KernelRow kBatchNormKernels[] = {
    {"aten::_native_batch_norm_legit.no_stats", BatchNorm<false, false>},
    {"aten::_native_batch_norm_legit_functional", BatchNorm<true, true>},
    {"aten::native_batch_norm", BatchNorm<true, false>},
    {"aten::native_batch_norm_backward", BatchNormBackward},
};
static_assert(SortedByOp(kBatchNormKernels));

}  // namespace

absl::Span<const KernelRow> BatchNormKernels() { return kBatchNormKernels; }

}  // namespace spmd::reference
