// SPDX-License-Identifier: Apache-2.0
// Element-wise ops: one row, one formula.
#include <algorithm>
#include <cmath>
#include <string>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

using A = OpArgs;
using X = const double*;

constexpr double kPi = 3.14159265358979323846;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The remainder has the sign of the divisor, as in PyTorch.
double Remainder(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double RoundedDivision(double a, double b, const A& args) {
  const std::string mode = args.StringOr("rounding_mode", "");
  return mode == "floor" ? std::floor(a / b) : mode == "trunc" ? std::trunc(a / b) : a / b;
}

// The result is NaN if either operand is, as in PyTorch.
double Maximum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
}
double Minimum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
}

// log(exp(a) + exp(b))
double LogOfSum(double a, double b) {
  if (a == b) return a + std::log(2.0);  // of infinities, too
  return Maximum(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

double Clamp(double x, const A& args) {
  if (args.Has("min")) x = Maximum(x, args.Double("min"));
  if (args.Has("max")) x = Minimum(x, args.Double("max"));
  return x;
}

double Gelu(double x, const A& args) {
  if (args.StringOr("approximate", "none") == "tanh") {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x)));
  }
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

double GeluSlope(double x, const A& args) {
  if (args.StringOr("approximate", "none") == "tanh") {
    const double c = std::sqrt(2 / kPi);
    const double t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  }
  const double cdf = 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  return cdf + x * std::exp(-0.5 * x * x) / std::sqrt(2 * kPi);
}

double Lerp(double a, double b, double weight) { return a + weight * (b - a); }
int64_t AsInt(double x) { return static_cast<int64_t>(RoundTo(DType::kI64, x)); }

constexpr ElementwiseRow kElementwiseKernels[] = {
    {"aten::abs", 1, [](X x, const A&) { return std::abs(x[0]); }},
    {"aten::acos", 1, [](X x, const A&) { return std::acos(x[0]); }},
    {"aten::add.Scalar", 1,
     [](X x, const A& a) { return x[0] + a.DoubleOr("alpha", 1) * a.Double("other"); }},
    {"aten::add.Tensor", 2, [](X x, const A& a) { return x[0] + a.DoubleOr("alpha", 1) * x[1]; }},
    {"aten::addcdiv", 3,
     [](X x, const A& a) { return x[0] + a.DoubleOr("value", 1) * x[1] / x[2]; }},
    {"aten::addcmul", 3,
     [](X x, const A& a) { return x[0] + a.DoubleOr("value", 1) * x[1] * x[2]; }},
    {"aten::alias", 1, [](X x, const A&) { return x[0]; }},
    {"aten::asin", 1, [](X x, const A&) { return std::asin(x[0]); }},
    {"aten::atan", 1, [](X x, const A&) { return std::atan(x[0]); }},
    {"aten::atan2", 2, [](X x, const A&) { return std::atan2(x[0], x[1]); }},
    {"aten::bitwise_and.Tensor", 2, [](X x, const A&) -> double { return AsInt(x[0]) & AsInt(x[1]); }},
    {"aten::bitwise_not", 1,
     [](X x, const A& a) -> double {
       return a.result_dtype(0) == DType::kBool ? x[0] == 0 : ~AsInt(x[0]);
     }},
    {"aten::bitwise_or.Tensor", 2, [](X x, const A&) -> double { return AsInt(x[0]) | AsInt(x[1]); }},
    {"aten::bitwise_xor.Tensor", 2,
     [](X x, const A&) -> double { return AsInt(x[0]) ^ AsInt(x[1]); }},
    {"aten::ceil", 1, [](X x, const A&) { return std::ceil(x[0]); }},
    {"aten::clamp", 1, [](X x, const A& a) { return Clamp(x[0], a); }},
    {"aten::clamp_max", 1, [](X x, const A& a) { return Minimum(x[0], a.Double("max")); }},
    {"aten::clamp_min", 1, [](X x, const A& a) { return Maximum(x[0], a.Double("min")); }},
    {"aten::clone", 1, [](X x, const A&) { return x[0]; }},
    {"aten::copy", 2, [](X x, const A&) { return x[1]; }},
    {"aten::cos", 1, [](X x, const A&) { return std::cos(x[0]); }},
    {"aten::cosh", 1, [](X x, const A&) { return std::cosh(x[0]); }},
    {"aten::detach", 1, [](X x, const A&) { return x[0]; }},
    {"aten::div.Scalar", 1, [](X x, const A& a) { return x[0] / a.Double("other"); }},
    {"aten::div.Scalar_mode", 1,
     [](X x, const A& a) { return RoundedDivision(x[0], a.Double("other"), a); }},
    {"aten::div.Tensor", 2, [](X x, const A&) { return x[0] / x[1]; }},
    {"aten::div.Tensor_mode", 2, [](X x, const A& a) { return RoundedDivision(x[0], x[1], a); }},
    {"aten::eq.Scalar", 1, [](X x, const A& a) -> double { return x[0] == a.Double("other"); }},
    {"aten::eq.Tensor", 2, [](X x, const A&) -> double { return x[0] == x[1]; }},
    {"aten::erf", 1, [](X x, const A&) { return std::erf(x[0]); }},
    {"aten::exp", 1, [](X x, const A&) { return std::exp(x[0]); }},
    {"aten::exp2", 1, [](X x, const A&) { return std::exp2(x[0]); }},
    {"aten::expm1", 1, [](X x, const A&) { return std::expm1(x[0]); }},
    {"aten::fill.Scalar", 1, [](X, const A& a) { return a.Double("value"); }},
    {"aten::fill.Tensor", 2, [](X x, const A&) { return x[1]; }},
    {"aten::floor", 1, [](X x, const A&) { return std::floor(x[0]); }},
    {"aten::floor_divide", 2, [](X x, const A&) { return std::floor(x[0] / x[1]); }},
    {"aten::fmod.Scalar", 1, [](X x, const A& a) { return std::fmod(x[0], a.Double("other")); }},
    {"aten::fmod.Tensor", 2, [](X x, const A&) { return std::fmod(x[0], x[1]); }},
    {"aten::ge.Scalar", 1, [](X x, const A& a) -> double { return x[0] >= a.Double("other"); }},
    {"aten::ge.Tensor", 2, [](X x, const A&) -> double { return x[0] >= x[1]; }},
    {"aten::gelu", 1, [](X x, const A& a) { return Gelu(x[0], a); }},
    {"aten::gelu_backward", 2, [](X x, const A& a) { return x[0] * GeluSlope(x[1], a); }},
    {"aten::gt.Scalar", 1, [](X x, const A& a) -> double { return x[0] > a.Double("other"); }},
    {"aten::gt.Tensor", 2, [](X x, const A&) -> double { return x[0] > x[1]; }},
    {"aten::hardtanh", 1,
     [](X x, const A& a) {
       return Minimum(Maximum(x[0], a.DoubleOr("min_val", -1)), a.DoubleOr("max_val", 1));
     }},
    {"aten::isfinite", 1, [](X x, const A&) -> double { return std::isfinite(x[0]); }},
    {"aten::isinf", 1, [](X x, const A&) -> double { return std::isinf(x[0]); }},
    {"aten::isnan", 1, [](X x, const A&) -> double { return std::isnan(x[0]); }},
    {"aten::le.Scalar", 1, [](X x, const A& a) -> double { return x[0] <= a.Double("other"); }},
    {"aten::le.Tensor", 2, [](X x, const A&) -> double { return x[0] <= x[1]; }},
    {"aten::leaky_relu", 1,
     [](X x, const A& a) { return x[0] > 0 ? x[0] : x[0] * a.DoubleOr("negative_slope", 0.01); }},
    {"aten::lerp.Scalar", 2, [](X x, const A& a) { return Lerp(x[0], x[1], a.Double("weight")); }},
    {"aten::lerp.Tensor", 3, [](X x, const A&) { return Lerp(x[0], x[1], x[2]); }},
    {"aten::log", 1, [](X x, const A&) { return std::log(x[0]); }},
    {"aten::log10", 1, [](X x, const A&) { return std::log10(x[0]); }},
    {"aten::log1p", 1, [](X x, const A&) { return std::log1p(x[0]); }},
    {"aten::log2", 1, [](X x, const A&) { return std::log2(x[0]); }},
    {"aten::logaddexp", 2, [](X x, const A&) { return LogOfSum(x[0], x[1]); }},
    {"aten::logical_and", 2, [](X x, const A&) -> double { return x[0] != 0 && x[1] != 0; }},
    {"aten::logical_not", 1, [](X x, const A&) -> double { return x[0] == 0; }},
    {"aten::logical_or", 2, [](X x, const A&) -> double { return x[0] != 0 || x[1] != 0; }},
    {"aten::logical_xor", 2, [](X x, const A&) -> double { return (x[0] != 0) != (x[1] != 0); }},
    {"aten::lt.Scalar", 1, [](X x, const A& a) -> double { return x[0] < a.Double("other"); }},
    {"aten::lt.Tensor", 2, [](X x, const A&) -> double { return x[0] < x[1]; }},
    {"aten::masked_fill.Scalar", 2,
     [](X x, const A& a) { return x[1] != 0 ? a.Double("value") : x[0]; }},
    {"aten::masked_fill.Tensor", 3, [](X x, const A&) { return x[1] != 0 ? x[2] : x[0]; }},
    {"aten::maximum", 2, [](X x, const A&) { return Maximum(x[0], x[1]); }},
    {"aten::minimum", 2, [](X x, const A&) { return Minimum(x[0], x[1]); }},
    {"aten::mul.Scalar", 1, [](X x, const A& a) { return x[0] * a.Double("other"); }},
    {"aten::mul.Tensor", 2, [](X x, const A&) { return x[0] * x[1]; }},
    {"aten::ne.Scalar", 1, [](X x, const A& a) -> double { return x[0] != a.Double("other"); }},
    {"aten::ne.Tensor", 2, [](X x, const A&) -> double { return x[0] != x[1]; }},
    {"aten::neg", 1, [](X x, const A&) { return -x[0]; }},
    {"aten::pow.Scalar", 1, [](X x, const A& a) { return std::pow(a.Double("self"), x[0]); }},
    {"aten::pow.Tensor_Scalar", 1,
     [](X x, const A& a) { return std::pow(x[0], a.Double("exponent")); }},
    {"aten::pow.Tensor_Tensor", 2, [](X x, const A&) { return std::pow(x[0], x[1]); }},
    {"aten::reciprocal", 1, [](X x, const A&) { return 1 / x[0]; }},
    {"aten::relu", 1, [](X x, const A&) { return Maximum(x[0], 0); }},
    {"aten::remainder.Scalar", 1, [](X x, const A& a) { return Remainder(x[0], a.Double("other")); }},
    {"aten::remainder.Tensor", 2, [](X x, const A&) { return Remainder(x[0], x[1]); }},
    {"aten::round", 1, [](X x, const A&) { return std::nearbyint(x[0]); }},
    {"aten::rsqrt", 1, [](X x, const A&) { return 1 / std::sqrt(x[0]); }},
    {"aten::rsub.Scalar", 1,
     [](X x, const A& a) { return a.Double("other") - a.DoubleOr("alpha", 1) * x[0]; }},
    {"aten::rsub.Tensor", 2, [](X x, const A& a) { return x[1] - a.DoubleOr("alpha", 1) * x[0]; }},
    {"aten::sgn", 1, [](X x, const A&) -> double { return (x[0] > 0) - (x[0] < 0); }},
    {"aten::sigmoid", 1, [](X x, const A&) { return Sigmoid(x[0]); }},
    {"aten::sigmoid_backward", 2, [](X x, const A&) { return x[0] * x[1] * (1 - x[1]); }},
    {"aten::sign", 1, [](X x, const A&) -> double { return (x[0] > 0) - (x[0] < 0); }},
    {"aten::silu", 1, [](X x, const A&) { return x[0] * Sigmoid(x[0]); }},
    {"aten::silu_backward", 2,
     [](X x, const A&) {
       const double s = Sigmoid(x[1]);
       return x[0] * s * (1 + x[1] * (1 - s));
     }},
    {"aten::sin", 1, [](X x, const A&) { return std::sin(x[0]); }},
    {"aten::sinh", 1, [](X x, const A&) { return std::sinh(x[0]); }},
    {"aten::softplus", 1,
     [](X x, const A& a) {
       const double beta = a.DoubleOr("beta", 1);
       if (x[0] * beta > a.DoubleOr("threshold", 20)) return x[0];
       return std::log1p(std::exp(x[0] * beta)) / beta;
     }},
    {"aten::sqrt", 1, [](X x, const A&) { return std::sqrt(x[0]); }},
    {"aten::sub.Scalar", 1,
     [](X x, const A& a) { return x[0] - a.DoubleOr("alpha", 1) * a.Double("other"); }},
    {"aten::sub.Tensor", 2, [](X x, const A& a) { return x[0] - a.DoubleOr("alpha", 1) * x[1]; }},
    {"aten::tan", 1, [](X x, const A&) { return std::tan(x[0]); }},
    {"aten::tanh", 1, [](X x, const A&) { return std::tanh(x[0]); }},
    {"aten::tanh_backward", 2, [](X x, const A&) { return x[0] * (1 - x[1] * x[1]); }},
    {"aten::threshold_backward", 2,
     [](X x, const A& a) { return x[1] > a.Double("threshold") ? x[0] : 0; }},
    {"aten::trunc", 1, [](X x, const A&) { return std::trunc(x[0]); }},
    {"aten::where.self", 3, [](X x, const A&) { return x[0] != 0 ? x[1] : x[2]; }},
    {"aten::xlogy.Tensor", 2,
     [](X x, const A&) { return x[0] == 0 && !std::isnan(x[1]) ? 0 : x[0] * std::log(x[1]); }},
    {"spmd::cast", 1, [](X x, const A&) { return x[0]; }},
    {"spmd::channel_affine", 3, [](X x, const A&) { return x[0] + x[1] * x[2]; }},
    {"spmd::in_range", 1, [](X x, const A&) { return x[0]; }},
};
static_assert(SortedByOp(kElementwiseKernels));

// True for ops whose result has the first operand's dims, whatever the other operands' dims are.
bool KeepsFirst(absl::string_view op) { return op == "aten::copy" || op == "aten::fill.Tensor"; }

}  // namespace

absl::Span<const ElementwiseRow> ElementwiseKernels() { return kElementwiseKernels; }

absl::StatusOr<Literals> RunElementwise(const ElementwiseRow& row, const OpArgs& args) {
  std::vector<const Literal*> operands;
  std::vector<Dims> shapes;
  for (int k = 0; k < row.operands; ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* operand, args.operand(k));
    operands.push_back(operand);
    shapes.push_back(operand->type.dims);
  }
  const std::optional<Dims> dims = BroadcastDims(shapes);
  if (!dims.has_value() || (KeepsFirst(row.op) && *dims != shapes[0])) {
    return args.Error("the operands do not broadcast");
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, *dims));
  std::vector<double> x(operands.size());
  for (size_t i = 0; i < out.data.size(); ++i) {
    const Dims index = Unravel(static_cast<int64_t>(i), *dims);
    for (size_t k = 0; k < operands.size(); ++k) {
      x[k] = operands[k]->data[RavelBroadcast(index, operands[k]->type.dims)];
    }
    out.data[i] = row.function(x.data(), args);
  }
  return One(std::move(out));
}

}  // namespace spmd::reference
