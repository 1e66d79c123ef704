// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/resample.h"
#include "csrc/rules/tables/upsample.h"

namespace spmd::rules {
namespace {

using ir::ValueId;
using Sizes = std::vector<int64_t>;

struct Ratio {
  int64_t in, out;
};

// `value` as a fraction of small numbers that is the same double.
std::optional<Ratio> AsFraction(double value) {
  constexpr int64_t kLargest = 4096;
  if (!(value > 0) || value > kLargest) return std::nullopt;
  for (int64_t out = 1; out <= kLargest; ++out) {
    const double in = std::round(value * static_cast<double>(out));
    if (in >= 1 && std::abs(in / static_cast<double>(out) - value) <=
                       2 * std::numeric_limits<double>::epsilon() * value) {
      return Ratio{static_cast<int64_t>(in), out};
    }
  }
  return std::nullopt;
}

// Inputs per output along spatial dimension i, when a scale is given: aten believes it.
std::optional<Ratio> RatioOf(const OpCall& call, int i, int rank, int64_t in, int64_t out) {
  const double scale = call.attrs().GetDoubleOr(ScaleName(i, rank), 0);
  if (!(scale > 0)) return Ratio{in, out};
  const std::optional<Ratio> inverse = AsFraction(scale);
  if (!inverse) return std::nullopt;
  return Ratio{inverse->out, inverse->in};
}

// aten rounds the ratio and the product, in single or double precision, before it rounds down.
bool RoundsAsExact(const Resampling& r, const OpCall& call, int i, int rank, int64_t in,
                   int64_t out) {
  const double given = call.attrs().GetDoubleOr(ScaleName(i, rank), 0);
  const double scale = given > 0 ? 1.0 / given : static_cast<double>(in) / static_cast<double>(out);
  const float single =
      given > 0 ? static_cast<float>(scale) : static_cast<float>(in) / static_cast<float>(out);
  const double shift = r.filter == "nearest_exact" ? 0.5 : 0;
  for (int64_t o = 0; o < out; ++o) {
    const double by_double = std::floor((static_cast<double>(o) + shift) * scale);
    const float by_single =
        std::floor((static_cast<float>(o) + static_cast<float>(shift)) * single);
    const int64_t exact = r.First(o);
    if (static_cast<int64_t>(by_double) != exact || static_cast<int64_t>(by_single) != exact) {
      return false;
    }
  }
  return true;
}

std::string FilterOf(absl::string_view op) {
  if (absl::StrContains(op, "nearest_exact")) return "nearest_exact";
  if (absl::StrContains(op, "nearest")) return "nearest";
  const bool antialias = absl::StrContains(op, "_aa");
  if (absl::StrContains(op, "bicubic")) return antialias ? "cubic_aa" : "cubic";
  return antialias ? "linear_aa" : "linear";
}

std::optional<Resampling> ResamplingOf(const OpCall& call, int i, int rank, int64_t in,
                                       int64_t out) {
  std::optional<Ratio> ratio = RatioOf(call, i, rank, in, out);
  const bool corners = call.attrs().GetBoolOr("align_corners", false);
  if (corners) ratio = Ratio{in - 1, out - 1};
  if (in == 0 || out == 0 || !ratio || ratio->in < 1 || ratio->out < 1) return std::nullopt;
  const auto [p, q] = *ratio;
  Resampling r{FilterOf(call.op), 2 * p, 0, 0, 2 * q, in, out};
  if (absl::EndsWith(r.filter, "_aa")) {
    // The filter is stretched over what an output covers where that is more than one input.
    const int64_t half = (r.filter == "cubic_aa" ? 2 : 1) * 2 * std::max(p, q);
    r.start = p + q - half;
    r.stop = p + q + half;
  } else if (r.filter == "nearest" || r.filter == "nearest_exact") {
    r.start = r.filter == "nearest" ? 0 : p;
    r.stop = r.start + r.unit;
    if (!RoundsAsExact(r, call, i, rank, in, out)) return std::nullopt;
  } else {
    const int64_t position = corners ? 0 : p - q;
    // The second of two is not looked at where the position is a whole number.
    r.start = r.filter == "cubic" ? position - r.unit : position;
    r.stop = r.filter == "cubic" ? position + 3 * r.unit : position + 2 * r.unit - 1;
  }
  return r;
}

// An attribute list of spatial sizes.
Sizes Spatial(const Dims& dims, int rank) { return Sizes(dims.end() - rank, dims.end()); }

// The call's attributes with only spatial dimension i changed.
Attributes OnlyDimension(const OpCall& call, int i, int rank, const Dims& fine) {
  Attributes attrs = call.attrs();
  attrs.Set("output_size", Spatial(fine, rank));
  for (int other = 0; other < rank; ++other) {
    if (other != i) attrs.Set(ScaleName(other, rank), NoneAttr{});
  }
  return attrs;
}

// Applies `one` to each spatial dimension that changes, in single precision where it is computed.
template <typename One>
absl::StatusOr<std::vector<ValueId>> ByDimension(Builder& b, const OpCall& call, ValueId x,
                                                 const Dims& in, const Dims& out, int rank,
                                                 One one) {
  const DType dtype = b.type(x).dtype;
  if (IsIntegral(dtype, /*include_bool=*/true)) return std::vector<ValueId>{};
  const int leading = static_cast<int>(in.size()) - rank;
  std::vector<int> changed;
  for (int i = 0; i < rank; ++i) {
    if (!KeepsDimension(call, i, rank, in[leading + i], out[leading + i])) changed.push_back(i);
  }
  ValueId value = Upcast(b, x);
  for (int i : changed) {
    std::optional<ValueId> next = one(value, i, leading + i, /*alone=*/changed.size() == 1);
    if (!next) return std::vector<ValueId>{};
    value = *next;
  }
  return std::vector<ValueId>{b.Cast(value, dtype)};
}

}  // namespace

absl::StatusOr<std::vector<ValueId>> UpsampleByDimension(Builder& b, const OpCall& call,
                                                         absl::Span<const ValueId> operands,
                                                         int rank) {
  const Dims& in = call.operand(0).dims;
  const Dims& out = call.results[0].dims;
  const auto one = [&](ValueId x, int i, int d, bool alone) -> std::optional<ValueId> {
    if (!alone) {
      Dims dims = b.type(x).dims;
      dims[d] = out[d];
      return b.Call(call.op, {x}, OnlyDimension(call, i, rank, dims));
    }
    const std::optional<Resampling> r = ResamplingOf(call, i, rank, in[d], out[d]);
    if (!r) return std::nullopt;
    return Resample(b, x, d, *r);
  };
  return ByDimension(b, call, operands[0], in, out, rank, one);
}

absl::StatusOr<std::vector<ValueId>> UpsampleBackwardByDimension(Builder& b, const OpCall& call,
                                                                 absl::Span<const ValueId> operands,
                                                                 int rank) {
  const Dims& in = call.results[0].dims;
  const Dims& out = call.operand(0).dims;
  const auto one = [&](ValueId grad, int i, int d, bool alone) -> std::optional<ValueId> {
    if (!alone) {
      const Dims fine = b.type(grad).dims;
      Dims coarse = fine;
      coarse[d] = in[d];
      Attributes attrs = OnlyDimension(call, i, rank, fine);
      attrs.Set("input_size", Sizes(coarse.begin(), coarse.end()));
      return b.Call(call.op, {grad}, std::move(attrs));
    }
    const std::optional<Resampling> r = ResamplingOf(call, i, rank, in[d], out[d]);
    if (!r) return std::nullopt;
    return ResampleDInput(b, grad, d, *r);
  };
  return ByDimension(b, call, operands[0], in, out, rank, one);
}

}  // namespace spmd::rules
