// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/resample.h"
#include "csrc/rules/tables/sliding.h"
#include "csrc/rules/tables/upsample.h"

namespace spmd::rules {
namespace {

using ir::ValueId;
using Sizes = std::vector<int64_t>;

struct Fraction {
  int64_t numerator, denominator;
};

// `value` as a fraction of small numbers, exact to the last bits of a double.
std::optional<Fraction> AsFraction(double value) {
  constexpr int64_t kLargest = 4096;
  if (!(value > 0) || value > kLargest) return std::nullopt;
  for (int64_t denominator = 1; denominator <= kLargest; ++denominator) {
    const double numerator = std::round(value * static_cast<double>(denominator));
    if (numerator >= 1 && std::abs(numerator / static_cast<double>(denominator) - value) <=
                              2 * std::numeric_limits<double>::epsilon() * value) {
      return Fraction{static_cast<int64_t>(numerator), denominator};
    }
  }
  return std::nullopt;
}

// The number of inputs per output along spatial dimension i.
std::optional<Fraction> RatioOf(const OpCall& call, int i, int rank, int64_t in, int64_t out) {
  if (call.attrs().GetBoolOr("align_corners", false)) return Fraction{in - 1, out - 1};
  const double scale = GivenScale(call, i, rank);
  if (scale == 0) return Fraction{in, out};
  const std::optional<Fraction> inverse = AsFraction(scale);
  if (!inverse) return std::nullopt;
  return Fraction{inverse->denominator, inverse->numerator};
}

bool IsNearest(absl::string_view filter) { return absl::StartsWith(filter, "nearest"); }

// True if aten ignores the given scale and copies or doubles by the sizes alone, which depends on
// the memory format and on the direction.
bool PassesOverScale(const OpCall& call, int i, int rank, int64_t in, int64_t out) {
  const double scale = GivenScale(call, i, rank);
  if (scale == 0) return false;
  const bool nearest = IsNearest(FactsOf(call.op).filter);
  return (in == out && !KeepsDimension(call, i, rank, in, out)) ||
         (nearest && out == 2 * in && scale != 2);
}

// True if the result is the exact one although aten rounds the ratio and the product, in single or
// double precision, before it rounds down.
bool RoundsAsExact(const Resampling& r, double scale, double shift) {
  const double per_output =
      scale > 0 ? 1.0 / scale : static_cast<double>(r.num_in) / static_cast<double>(r.num_out);
  const float single = scale > 0 ? static_cast<float>(per_output)
                                 : static_cast<float>(r.num_in) / static_cast<float>(r.num_out);
  for (int64_t o = 0; o < r.num_out; ++o) {
    const double by_double = std::floor((static_cast<double>(o) + shift) * per_output);
    const float by_single =
        std::floor((static_cast<float>(o) + static_cast<float>(shift)) * single);
    const int64_t exact = r.First(o);
    if (static_cast<int64_t>(by_double) != exact || static_cast<int64_t>(by_single) != exact) {
      return false;
    }
  }
  return true;
}

std::optional<Resampling> ResamplingOf(const OpCall& call, int i, int rank, int64_t in,
                                       int64_t out) {
  const std::optional<Fraction> ratio = RatioOf(call, i, rank, in, out);
  if (in == 0 || out == 0 || !ratio || ratio->numerator < 1 || ratio->denominator < 1) {
    return std::nullopt;
  }
  const auto [p, q] = *ratio;
  const absl::string_view filter = FactsOf(call.op).filter;
  Resampling r{IsNearest(filter) ? "nearest" : std::string(filter), 2 * p, 0, 0, 2 * q, in, out};
  if (absl::EndsWith(r.filter, "_aa")) {
    // The filter is stretched over what an output covers if that is more than one input.
    const int64_t half = (r.filter == "cubic_aa" ? 2 : 1) * 2 * std::max(p, q);
    r.start = p + q - half;
    r.stop = p + q + half;
  } else if (r.filter == "nearest") {
    const bool middle = filter == "nearest_exact";
    r.start = middle ? p : 0;
    r.stop = r.start + r.unit;
    if (!RoundsAsExact(r, GivenScale(call, i, rank), middle ? 0.5 : 0)) return std::nullopt;
  } else {
    const bool corners = call.attrs().GetBoolOr("align_corners", false);
    const int64_t position = corners ? 0 : p - q;
    // If the position is a whole number, the second of the two inputs is not read.
    r.start = r.filter == "cubic" ? position - r.unit : position;
    r.stop = r.filter == "cubic" ? position + 3 * r.unit : position + 2 * r.unit - 1;
  }
  return r;
}

// The call's attributes changed to resample spatial dimension i alone.
Attributes OnlyDimension(const OpCall& call, int i, int rank, const Dims& fine) {
  Attributes attrs = call.attrs();
  attrs.Set("output_size", SpatialSizes(fine, rank));
  for (int other = 0; other < rank; ++other) {
    if (other != i) attrs.Set(ScaleName(other, rank), NoneAttr{});
  }
  return attrs;
}

// Applies `one` to each spatial dimension that changes. Half precision is computed in single
// precision.
template <typename One>
absl::StatusOr<std::vector<ValueId>> ByDimension(Builder& b, const OpCall& call, ValueId x,
                                                 const Dims& in, const Dims& out, int rank,
                                                 One one) {
  const DType dtype = b.type(x).dtype;
  if (IsIntegral(dtype, /*include_bool=*/true)) return std::vector<ValueId>{};
  const int leading = static_cast<int>(in.size()) - rank;
  std::vector<int> changed;
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    if (PassesOverScale(call, i, rank, in[d], out[d])) return std::vector<ValueId>{};
    if (!KeepsDimension(call, i, rank, in[d], out[d])) changed.push_back(i);
  }
  const bool at_once = changed.size() == 1 || IsAntialiased(call);
  ValueId value = Upcast(b, x);
  for (int i : changed) {
    std::optional<ValueId> next = one(value, i, leading + i, at_once);
    if (!next) return std::vector<ValueId>{};
    value = *next;
  }
  return std::vector<ValueId>{b.Cast(value, dtype)};
}

}  // namespace

absl::StatusOr<std::vector<ValueId>> UpsampleByDimension(Builder& b, const OpCall& call,
                                                         Operands operands, int rank) {
  const Dims& in = call.operand(0).dims;
  const Dims& out = call.results[0].dims;
  const auto one = [&](ValueId x, int i, int d, bool resamples) -> std::optional<ValueId> {
    if (!resamples) {
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
                                                                 Operands operands, int rank) {
  const Dims& in = call.results[0].dims;
  const Dims& out = call.operand(0).dims;
  const auto one = [&](ValueId grad, int i, int d, bool resamples) -> std::optional<ValueId> {
    if (!resamples) {
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
