// SPDX-License-Identifier: Apache-2.0
// Ops that compute each element of the result from the operands' elements at the same index.
#include <initializer_list>
#include <vector>

#include "csrc/rules/families.h"
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

constexpr auto Unary() {
  constexpr Row same = Elementwise("");
  constexpr Row real = Elementwise("").Types(FloatTypes);
  constexpr Row predicate = Elementwise("").Types(BoolTypes);
  return Rows(
      All(same.Jointly({0}), {"aten::neg", "aten::conj_physical", "aten::_conj_physical"}),
      All(same.Jointly({0}).Monotone(), {"aten::clone", "aten::lift_fresh_copy"}),
      All(real.Jointly({0}), {"aten::deg2rad", "aten::rad2deg"}),
      All(same.Monotone(),
          {"aten::relu", "aten::sign", "aten::floor", "aten::ceil", "aten::trunc", "aten::round"}),
      All(real.Monotone(), {"aten::exp", "aten::expm1", "aten::exp2", "aten::tanh", "aten::sigmoid",
                            "aten::erf", "aten::atan", "aten::sinh", "aten::asinh"}),
      All(same, {"aten::sgn", "aten::frac", "aten::bitwise_not", "aten::round.decimals",
                 "aten::nan_to_num", "aten::gelu", "aten::silu", "aten::mish", "aten::celu",
                 "aten::elu", "aten::hardswish", "aten::leaky_relu", "aten::softplus",
                 "aten::softshrink", "aten::hardshrink", "aten::threshold", "aten::mvlgamma"}),
      All(same.Monotone(), {"aten::hardtanh", "aten::hardsigmoid"}),
      All(real,
          {"aten::log",   "aten::log2",       "aten::log10",  "aten::log1p",   "aten::sqrt",
           "aten::rsqrt", "aten::reciprocal", "aten::sin",    "aten::cos",     "aten::tan",
           "aten::asin",  "aten::acos",       "aten::cosh",   "aten::acosh",   "aten::atanh",
           "aten::erfc",  "aten::erfinv",     "aten::lgamma", "aten::digamma", "aten::polygamma",
           "aten::sinc",  "aten::i0",         "aten::logit"}),
      All(real,
          {"aten::special_i0e", "aten::special_i1", "aten::special_i1e", "aten::special_entr",
           "aten::special_ndtri", "aten::special_log_ndtr", "aten::special_erfcx",
           "aten::special_airy_ai", "aten::special_bessel_j0", "aten::special_bessel_j1",
           "aten::special_bessel_y0", "aten::special_bessel_y1", "aten::special_modified_bessel_i0",
           "aten::special_modified_bessel_i1", "aten::special_modified_bessel_k0",
           "aten::special_modified_bessel_k1", "aten::special_scaled_modified_bessel_k0",
           "aten::special_scaled_modified_bessel_k1", "aten::special_spherical_bessel_j0"}),
      All(predicate, {"aten::isnan", "aten::isinf", "aten::isfinite", "aten::isposinf",
                      "aten::isneginf", "aten::signbit", "aten::logical_not"}),
      Elementwise("").Types(RealTypes).Named("aten::abs"),
      Elementwise("").Types(AngleTypes).Named("aten::angle"),
      Elementwise("aten::frexp.Tensor").Types(nullptr),
      Elementwise("aten::log_sigmoid_forward")
          .Types(nullptr)
          .With(&OpFacts::kernel, "spmd::log_sigmoid_forward"));  // on a GPU the buffer is empty
}

constexpr auto Arithmetic() {
  constexpr Row two = Elementwise("");
  // Division by zero fails for integers, and so does a power with a negative exponent.
  constexpr Row divides = two.With(&OpFacts::fails, Failure::kOnIntegers);
  return Rows(
      two.Jointly({0, 1}).With(&OpFacts::adds, true).Named("aten::add.Tensor"),
      All(two.Jointly({0, 1}), {"aten::sub.Tensor", "aten::rsub.Tensor"}),
      // Adding a scalar to each partial sum would add it several times, so these are not linear.
      All(two, {"aten::add.Scalar", "aten::sub.Scalar", "aten::rsub.Scalar"}),
      two.Each({0, 1}).Named("aten::mul.Tensor"), two.Jointly({0}).Named("aten::mul.Scalar"),
      two.Each({0}).Types(FloatTypes).Named("aten::div.Tensor"),
      two.Jointly({0}).Types(FloatTypes).Named("aten::div.Scalar"),
      divides.Each({0}).LinearIf(DoesNotRound).Named("aten::div.Tensor_mode"),
      divides.Jointly({0}).LinearIf(DoesNotRound).Named("aten::div.Scalar_mode"),
      All(divides, {"aten::floor_divide", "aten::remainder.Tensor", "aten::fmod.Tensor"}),
      All(two,
          {"aten::maximum", "aten::minimum", "aten::fmax", "aten::fmin", "aten::pow.Tensor_Tensor",
           "aten::hypot", "aten::gcd", "aten::lcm", "aten::nextafter", "aten::heaviside",
           "aten::logaddexp", "aten::logaddexp2", "aten::igamma", "aten::igammac"}),
      All(two.Types(FloatTypes),
          {"aten::atan2", "aten::copysign.Tensor", "aten::xlogy.Tensor", "aten::special_xlog1py",
           "aten::special_zeta", "aten::ldexp.Tensor"}),
      All(divides, {"aten::floor_divide.Scalar", "aten::remainder.Scalar", "aten::fmod.Scalar"}),
      All(two.Types(FloatTypes),
          {"aten::copysign.Scalar", "aten::xlogy.Scalar_Other",
           "aten::special_xlog1py.other_scalar", "aten::special_zeta.other_scalar"}),
      All(divides, {"aten::pow.Scalar", "aten::remainder.Scalar_Tensor"}),
      All(two.Types(FloatTypes), {"aten::xlogy.Scalar_Self", "aten::special_xlog1py.self_scalar",
                                  "aten::special_zeta.self_scalar"}),
      divides.Named("aten::pow.Tensor_Scalar"),
      All(two.Types(FloatTypes), {"aten::special_chebyshev_polynomial_t",
                                  "aten::special_chebyshev_polynomial_t.x_scalar",
                                  "aten::special_chebyshev_polynomial_t.n_scalar",
                                  "aten::special_chebyshev_polynomial_u",
                                  "aten::special_chebyshev_polynomial_u.x_scalar",
                                  "aten::special_chebyshev_polynomial_u.n_scalar",
                                  "aten::special_chebyshev_polynomial_v",
                                  "aten::special_chebyshev_polynomial_v.x_scalar",
                                  "aten::special_chebyshev_polynomial_v.n_scalar",
                                  "aten::special_chebyshev_polynomial_w",
                                  "aten::special_chebyshev_polynomial_w.x_scalar",
                                  "aten::special_chebyshev_polynomial_w.n_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_t",
                                  "aten::special_shifted_chebyshev_polynomial_t.x_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_t.n_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_u",
                                  "aten::special_shifted_chebyshev_polynomial_u.x_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_u.n_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_v",
                                  "aten::special_shifted_chebyshev_polynomial_v.x_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_v.n_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_w",
                                  "aten::special_shifted_chebyshev_polynomial_w.x_scalar",
                                  "aten::special_shifted_chebyshev_polynomial_w.n_scalar",
                                  "aten::special_hermite_polynomial_h",
                                  "aten::special_hermite_polynomial_h.x_scalar",
                                  "aten::special_hermite_polynomial_h.n_scalar",
                                  "aten::special_hermite_polynomial_he",
                                  "aten::special_hermite_polynomial_he.x_scalar",
                                  "aten::special_hermite_polynomial_he.n_scalar",
                                  "aten::special_laguerre_polynomial_l",
                                  "aten::special_laguerre_polynomial_l.x_scalar",
                                  "aten::special_laguerre_polynomial_l.n_scalar",
                                  "aten::special_legendre_polynomial_p",
                                  "aten::special_legendre_polynomial_p.x_scalar",
                                  "aten::special_legendre_polynomial_p.n_scalar"}),
      All(two.Monotone(), {"aten::clamp", "aten::clamp_min", "aten::clamp_max"}),
      All(two, {"aten::clamp.Tensor", "aten::clamp_min.Tensor", "aten::clamp_max.Tensor"}));
}

constexpr auto Logic() {
  constexpr Row two = Elementwise("").Types(BoolTypes);
  constexpr Row bits = Elementwise("");
  return Rows(
      All(two, {"aten::eq.Tensor", "aten::ne.Tensor", "aten::lt.Tensor", "aten::le.Tensor",
                "aten::gt.Tensor", "aten::ge.Tensor", "aten::logical_and", "aten::logical_or",
                "aten::logical_xor"}),
      All(two, {"aten::eq.Scalar", "aten::ne.Scalar", "aten::lt.Scalar", "aten::le.Scalar",
                "aten::gt.Scalar", "aten::ge.Scalar"}),
      All(bits, {"aten::bitwise_and.Tensor", "aten::bitwise_or.Tensor", "aten::bitwise_xor.Tensor",
                 "aten::bitwise_left_shift.Tensor", "aten::bitwise_right_shift.Tensor",
                 "aten::__lshift__.Tensor", "aten::__rshift__.Tensor"}),
      All(bits,
          {"aten::bitwise_and.Scalar", "aten::bitwise_or.Scalar", "aten::bitwise_xor.Scalar",
           "aten::bitwise_left_shift.Tensor_Scalar", "aten::bitwise_right_shift.Tensor_Scalar",
           "aten::__lshift__.Scalar", "aten::__rshift__.Scalar"}),
      All(bits, {"aten::bitwise_and.Scalar_Tensor", "aten::bitwise_or.Scalar_Tensor",
                 "aten::bitwise_xor.Scalar_Tensor", "aten::bitwise_left_shift.Scalar_Tensor",
                 "aten::bitwise_right_shift.Scalar_Tensor"}));
}

// Gradients are linear in the incoming gradient.
constexpr auto Backward() {
  constexpr Row grad = Elementwise("").Each({0});
  return Rows(
      All(grad,
          {"aten::threshold_backward", "aten::gelu_backward", "aten::silu_backward",
           "aten::mish_backward", "aten::tanh_backward", "aten::sigmoid_backward",
           "aten::elu_backward", "aten::leaky_relu_backward", "aten::softplus_backward",
           "aten::hardtanh_backward", "aten::hardswish_backward", "aten::hardsigmoid_backward",
           "aten::hardshrink_backward", "aten::softshrink_backward", "aten::log_sigmoid_backward",
           "aten::logit_backward", "aten::native_dropout_backward"}),
      grad.Named("aten::rrelu_with_noise_backward"),
      All(Elementwise(""), {"aten::_dirichlet_grad", "aten::_standard_gamma_grad"}),
      Elementwise("aten::_prelu_kernel"),
      Elementwise("aten::_prelu_kernel_backward").Each({0}).Types(nullptr));
}

constexpr auto Mixed() {
  constexpr Row three = Elementwise("");
  return Rows(
      three.Jointly({1, 2}).Types(WhereTypes).Named("aten::where.self"),
      three.Jointly({0, 1}).Named("aten::lerp.Scalar"),
      three.Jointly({0, 1}).Named("aten::lerp.Tensor"),
      three.Jointly({0, 1}).Named("aten::addcmul"),
      Elementwise("spmd::channel_affine").Jointly({0, 1}),
      three.Jointly({0, 1}).Types(FloatTypes).Named("aten::addcdiv"),
      three.Jointly({0}).LinearIf(FillsZero).Types(FirstTypes).Named("aten::masked_fill.Scalar"),
      three.Jointly({0, 2}).Types(FirstTypes).Named("aten::masked_fill.Tensor"),
      three.Jointly({0, 1}).Types(ComplexTypes).Named("aten::complex"),
      three.Types(ComplexTypes).Named("aten::polar"));
}

// One scale and zero point for all of operand 0, or one for each index of the dimension `axis`.
// Gradients of these are sums over what they are for.
absl::StatusOr<OpFactors> QuantizeFactors(const OpCall& call) {
  const TensorType& x = call.operand(0);
  const bool by_axis = call.attrs().Find("axis") != nullptr;
  const int64_t axis = by_axis ? call.Dim("axis", x.rank()) : -1;
  OpFactors f;
  TensorFactors each;
  for (int d = 0; d < x.rank(); ++d) {
    f.factors.push_back({.size = x.dims[d]});
    each.push_back({d});
  }
  const auto factors_of = [&](const TensorType& type) -> TensorFactors {
    if (type.dims == x.dims) return each;
    if (by_axis && type.rank() == 1 && type.dims[0] == x.dims[axis]) {
      return {{static_cast<int>(axis)}};
    }
    return TensorFactors(type.rank());
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(*type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(type));
  return f;
}

constexpr auto FakeQuantization() {
  constexpr Row quantize = Computed("", QuantizeFactors);
  return Rows(
      All(quantize, {"aten::_fake_quantize_learnable_per_channel_affine",
                     "aten::_fake_quantize_learnable_per_tensor_affine",
                     "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
                     "aten::fake_quantize_per_channel_affine_cachemask",
                     "aten::fake_quantize_per_tensor_affine_cachemask"}),
      All(quantize.Each({0}), {"aten::_fake_quantize_learnable_per_channel_affine_backward",
                               "aten::_fake_quantize_learnable_per_tensor_affine_backward"}));
}

// Copies and casts, and ops that depend on the operand's type only.
constexpr auto Copies() {
  return Rows(
      Elementwise("spmd::cast")
          .Jointly({0})
          .Monotone()
          .LinearIf(CastIsLinear)
          .Types(CastTypes)
          .With(&OpFacts::converts, true),
      Elementwise("aten::copy").Jointly({1}).LinearIf(CopyIsLinear).Types(FirstTypes),
      Elementwise("spmd::in_range").Types(FirstTypes).With(&OpFacts::fails, Failure::kOnValues),
      Elementwise("").Types(FirstTypes).Named("aten::fill.Scalar"),
      All(Elementwise("").Types(FirstTypes), {"aten::fill.Tensor", "aten::zero"}));
}

constexpr auto kElementwiseRows =
    Rows(Unary(), Arithmetic(), Logic(), Backward(), Mixed(), FakeQuantization(), Copies());
static_assert(AreRowsOf(Family::kElementwise, kElementwiseRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> ElementwiseRows() { return kElementwiseRows; }

}  // namespace spmd::rules
