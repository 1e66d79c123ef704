// SPDX-License-Identifier: Apache-2.0
// Ops that compute each element of the result from the operands' elements at the same index.
#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/elementwise_types.h"

namespace spmd::rules {
namespace {

// Partial sums may be cast one by one only if the cast does no more than round.
bool IsFloatCast(DType from, DType to) {
  return (IsFloating(from) && (IsFloating(to) || IsComplex(to))) ||
         (IsComplex(from) && IsComplex(to));
}
bool CastIsLinear(const OpCall& call) {
  const Attr* dtype = call.attrs().Find("dtype");
  return dtype != nullptr && std::holds_alternative<DType>(*dtype) &&
         IsFloatCast(call.operand(0).dtype, std::get<DType>(*dtype));
}
bool CopyIsLinear(const OpCall& call) {
  return IsFloatCast(call.operand(1).dtype, call.operand(0).dtype);
}
bool DoesNotRound(const OpCall& call) { return call.attrs().IsNone("rounding_mode"); }
bool FillsZero(const OpCall& call) {
  const Attr* value = call.attrs().Find("value");
  if (value == nullptr) return false;
  const int64_t* i = std::get_if<int64_t>(value);
  const double* d = std::get_if<double>(value);
  return (i != nullptr && *i == 0) || (d != nullptr && *d == 0);
}

class Table {
 public:
  // Adds a copy of `prototype` for each name.
  Table& All(const Rule& prototype, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      rules_.push_back(prototype);
      rules_.back().op = absl::StrCat("aten::", name);
    }
    return *this;
  }
  Table& Row(Rule rule) {
    rules_.push_back(std::move(rule));
    return *this;
  }
  std::vector<Rule> Take() { return std::move(rules_); }

 private:
  std::vector<Rule> rules_;
};

void Unary(Table& t) {
  const Rule same = Elementwise("");
  const Rule real = Elementwise("").Types(FloatTypes);
  const Rule predicate = Elementwise("").Types(BoolTypes);
  t.All(same.Jointly({0}), {"neg", "conj_physical", "_conj_physical"});
  t.All(same.Jointly({0}).Monotone(), {"clone", "lift_fresh_copy"});
  t.All(real.Jointly({0}), {"deg2rad", "rad2deg"});
  t.All(same.Monotone(), {"relu", "sign", "floor", "ceil", "trunc", "round"});
  t.All(real.Monotone(),
        {"exp", "expm1", "exp2", "tanh", "sigmoid", "erf", "atan", "sinh", "asinh"});
  t.All(same, {"sgn", "frac", "bitwise_not", "round.decimals", "nan_to_num", "gelu", "silu", "mish",
               "celu", "elu", "hardswish", "leaky_relu", "softplus", "softshrink", "hardshrink",
               "threshold", "mvlgamma"});
  t.All(same.Monotone(), {"hardtanh", "hardsigmoid"});
  t.All(real, {"log",    "log2",   "log10",   "log1p",     "sqrt", "rsqrt", "reciprocal", "sin",
               "cos",    "tan",    "asin",    "acos",      "cosh", "acosh", "atanh",      "erfc",
               "erfinv", "lgamma", "digamma", "polygamma", "sinc", "i0",    "logit"});
  t.All(real,
        {"special_i0e", "special_i1", "special_i1e", "special_entr", "special_ndtri",
         "special_log_ndtr", "special_erfcx", "special_airy_ai", "special_bessel_j0",
         "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
         "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
         "special_modified_bessel_k1", "special_scaled_modified_bessel_k0",
         "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0"});
  t.All(predicate,
        {"isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not"});
  t.All(Elementwise("").Types(RealTypes), {"abs"});
  t.All(Elementwise("").Types(AngleTypes), {"angle"});
  t.Row(Elementwise("aten::frexp.Tensor").Types(nullptr));
  t.Row(Elementwise("aten::log_sigmoid_forward").Types(nullptr));
}

void Arithmetic(Table& t) {
  const Rule two = Elementwise("");
  // Division by zero fails for integers, and so does a power with a negative exponent.
  const Rule divides = two.With(&OpFacts::fails, Failure::kOnIntegers);
  t.All(two.Jointly({0, 1}).With(&OpFacts::adds, true), {"add.Tensor"});
  t.All(two.Jointly({0, 1}), {"sub.Tensor", "rsub.Tensor"});
  // Adding a scalar to each partial sum would add it several times, so these are not linear.
  t.All(two, {"add.Scalar", "sub.Scalar", "rsub.Scalar"});
  t.All(two.Each({0, 1}), {"mul.Tensor"});
  t.All(two.Jointly({0}), {"mul.Scalar"});
  t.All(two.Each({0}).Types(FloatTypes), {"div.Tensor"});
  t.All(two.Jointly({0}).Types(FloatTypes), {"div.Scalar"});
  t.All(divides.Each({0}).LinearIf(DoesNotRound), {"div.Tensor_mode"});
  t.All(divides.Jointly({0}).LinearIf(DoesNotRound), {"div.Scalar_mode"});
  t.All(divides, {"floor_divide", "remainder.Tensor", "fmod.Tensor"});
  t.All(two, {"maximum", "minimum", "fmax", "fmin", "pow.Tensor_Tensor", "hypot", "gcd", "lcm",
              "nextafter", "heaviside", "logaddexp", "logaddexp2", "igamma", "igammac"});
  t.All(two.Types(FloatTypes), {"atan2", "copysign.Tensor", "xlogy.Tensor", "special_xlog1py",
                                "special_zeta", "ldexp.Tensor"});
  t.All(divides, {"floor_divide.Scalar", "remainder.Scalar", "fmod.Scalar"});
  t.All(two.Types(FloatTypes), {"copysign.Scalar", "xlogy.Scalar_Other",
                                "special_xlog1py.other_scalar", "special_zeta.other_scalar"});
  t.All(divides, {"pow.Scalar", "remainder.Scalar_Tensor"});
  t.All(two.Types(FloatTypes),
        {"xlogy.Scalar_Self", "special_xlog1py.self_scalar", "special_zeta.self_scalar"});
  t.All(divides, {"pow.Tensor_Scalar"});
  t.All(two.Types(FloatTypes), {"special_chebyshev_polynomial_t",
                                "special_chebyshev_polynomial_t.x_scalar",
                                "special_chebyshev_polynomial_t.n_scalar",
                                "special_chebyshev_polynomial_u",
                                "special_chebyshev_polynomial_u.x_scalar",
                                "special_chebyshev_polynomial_u.n_scalar",
                                "special_chebyshev_polynomial_v",
                                "special_chebyshev_polynomial_v.x_scalar",
                                "special_chebyshev_polynomial_v.n_scalar",
                                "special_chebyshev_polynomial_w",
                                "special_chebyshev_polynomial_w.x_scalar",
                                "special_chebyshev_polynomial_w.n_scalar",
                                "special_shifted_chebyshev_polynomial_t",
                                "special_shifted_chebyshev_polynomial_t.x_scalar",
                                "special_shifted_chebyshev_polynomial_t.n_scalar",
                                "special_shifted_chebyshev_polynomial_u",
                                "special_shifted_chebyshev_polynomial_u.x_scalar",
                                "special_shifted_chebyshev_polynomial_u.n_scalar",
                                "special_shifted_chebyshev_polynomial_v",
                                "special_shifted_chebyshev_polynomial_v.x_scalar",
                                "special_shifted_chebyshev_polynomial_v.n_scalar",
                                "special_shifted_chebyshev_polynomial_w",
                                "special_shifted_chebyshev_polynomial_w.x_scalar",
                                "special_shifted_chebyshev_polynomial_w.n_scalar",
                                "special_hermite_polynomial_h",
                                "special_hermite_polynomial_h.x_scalar",
                                "special_hermite_polynomial_h.n_scalar",
                                "special_hermite_polynomial_he",
                                "special_hermite_polynomial_he.x_scalar",
                                "special_hermite_polynomial_he.n_scalar",
                                "special_laguerre_polynomial_l",
                                "special_laguerre_polynomial_l.x_scalar",
                                "special_laguerre_polynomial_l.n_scalar",
                                "special_legendre_polynomial_p",
                                "special_legendre_polynomial_p.x_scalar",
                                "special_legendre_polynomial_p.n_scalar"});
  t.All(two.Monotone(), {"clamp", "clamp_min", "clamp_max"});
  t.All(two, {"clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"});
}

void Logic(Table& t) {
  const Rule two = Elementwise("").Types(BoolTypes);
  t.All(two, {"eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor",
              "logical_and", "logical_or", "logical_xor"});
  t.All(two, {"eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar"});
  const Rule bits = Elementwise("");
  t.All(bits, {"bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor",
               "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "__lshift__.Tensor",
               "__rshift__.Tensor"});
  t.All(bits, {"bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar",
               "bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar",
               "__lshift__.Scalar", "__rshift__.Scalar"});
  t.All(bits, {"bitwise_and.Scalar_Tensor", "bitwise_or.Scalar_Tensor", "bitwise_xor.Scalar_Tensor",
               "bitwise_left_shift.Scalar_Tensor", "bitwise_right_shift.Scalar_Tensor"});
}

// Gradients are linear in the incoming gradient.
void Backward(Table& t) {
  const Rule grad = Elementwise("").Each({0});
  t.All(grad, {"threshold_backward", "gelu_backward", "silu_backward", "mish_backward",
               "tanh_backward", "sigmoid_backward", "elu_backward", "leaky_relu_backward",
               "softplus_backward", "hardtanh_backward", "hardswish_backward",
               "hardsigmoid_backward", "hardshrink_backward", "softshrink_backward",
               "log_sigmoid_backward", "logit_backward", "native_dropout_backward"});
  t.All(grad, {"rrelu_with_noise_backward"});
  t.All(Elementwise(""), {"_dirichlet_grad", "_standard_gamma_grad"});
  t.Row(Elementwise("aten::_prelu_kernel"));
  t.Row(Elementwise("aten::_prelu_kernel_backward").Each({0}).Types(nullptr));
}

void Mixed(Table& t) {
  const Rule three = Elementwise("");
  t.All(three.Jointly({1, 2}).Types(WhereTypes), {"where.self"});
  t.All(three.Jointly({0, 1}), {"lerp.Scalar"});
  t.All(three.Jointly({0, 1}), {"lerp.Tensor"});
  t.All(three.Jointly({0, 1}), {"addcmul"});
  t.Row(Elementwise("spmd::channel_affine").Jointly({0, 1}));
  t.All(three.Jointly({0, 1}).Types(FloatTypes), {"addcdiv"});
  t.All(three.Jointly({0}).LinearIf(FillsZero).Types(FirstTypes), {"masked_fill.Scalar"});
  t.All(three.Jointly({0, 2}).Types(FirstTypes), {"masked_fill.Tensor"});
  t.All(three.Jointly({0, 1}).Types(ComplexTypes), {"complex"});
  t.All(three.Types(ComplexTypes), {"polar"});
}

// Copies and casts, and ops that depend on the operand's type only.
void Copies(Table& t) {
  t.Row(Elementwise("spmd::cast").Jointly({0}).Monotone().LinearIf(CastIsLinear).Types(CastTypes));
  t.Row(Elementwise("aten::copy").Jointly({1}).LinearIf(CopyIsLinear).Types(FirstTypes));
  t.Row(Elementwise("spmd::in_range").Types(FirstTypes).With(&OpFacts::fails, Failure::kOnValues));
  t.All(Elementwise("").Types(FirstTypes), {"fill.Scalar"});
  t.All(Elementwise("").Types(FirstTypes), {"fill.Tensor", "zero"});
}

}  // namespace

std::vector<Rule> ElementwiseRules() {
  Table t;
  Unary(t);
  Arithmetic(t);
  Logic(t);
  Backward(t);
  Mixed(t);
  Copies(t);
  return t.Take();
}

}  // namespace spmd::rules
