// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <utility>

#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/reduced_dims.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

constexpr double kInfinitePower = std::numeric_limits<double>::infinity();

// The dims attributes of a reduction node.
struct ReducedDims {
  ReducedDims(const ir::Graph& from, const ir::Node& node)
      : type(from.type(node.operands[0])),
        named(NamedDims(node.attributes, "dim", type.rank())),
        dims(DimList(named)),
        count(CountOf(type.dims, named)),
        keepdim(node.attributes.GetBoolOr("keepdim", false)) {}

  const TensorType& type;
  std::vector<bool> named;
  std::vector<int64_t> dims;
  int64_t count;
  bool keepdim;
};

// The type that the node's "dtype" names, if any, else `otherwise`.
DType NamedType(const ir::Node& node, DType otherwise) {
  const Attr* dtype = node.attributes.Find("dtype");
  const bool given = dtype != nullptr && std::holds_alternative<DType>(*dtype);
  return given ? std::get<DType>(*dtype) : otherwise;
}

ir::ValueId CastToAttr(Builder& b, ir::ValueId v, const ir::Node& node) {
  return b.Cast(v, NamedType(node, b.type(v).dtype));
}

// Drops the reduced dimensions, which `v` has with size 1, unless the node keeps them.
ir::ValueId Squeeze(Builder& b, ir::ValueId v, const ReducedDims& r) {
  if (r.keepdim || r.dims.empty()) return v;
  const Dims sizes = ReducedSizes(r.type.dims, r.named, /*keepdim=*/false);
  return b.View(v, std::vector<int64_t>(sizes.begin(), sizes.end()));
}

// amax, with 0 for rows whose maximum is infinite, so that differences with it are never NaN.
ir::ValueId FiniteAmax(Builder& b, ir::ValueId x, const std::vector<int64_t>& dims) {
  const ir::ValueId top = b.Amax(x, dims, /*keepdim=*/true);
  const ir::ValueId infinite = b.Call("aten::isinf", {top});
  return b.Where(infinite, b.Constant(0, b.type(x).dtype), top);
}

}  // namespace

ValuesOrStatus DecomposeMean(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  const ReducedDims r(from, node);
  const DType own = b.type(operands[0]).dtype, named = NamedType(node, own);
  const ir::ValueId x = named == own ? operands[0] : b.Cast(operands[0], ComputedIn(named));
  return AsResultsOf(b, from, node, {MeanOf(b, x, r.dims, r.count, r.keepdim)});
}

namespace {

// The variance or its `root`. Takes two passes: the mean, then the sum of squared distances from
// it.
ValuesOrStatus Variance(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands,
                        bool root) {
  const ReducedDims r(from, node);
  const ir::ValueId x = Upcast(b, operands[0]);
  const ir::ValueId mean = MeanOf(b, x, r.dims, r.count, /*keepdim=*/true);
  ir::ValueId distance = b.Sub(x, mean);
  if (IsComplex(b.type(x).dtype)) distance = b.Call("aten::abs", {distance});
  const ir::ValueId squares = b.Sum(b.Square(distance), r.dims, r.keepdim);
  const double count = static_cast<double>(r.count);
  const Attr correction = NumberOr(node, "correction", 1);
  ir::ValueId result;
  if (const std::optional<double> known = Known(correction)) {
    result = b.DivScalar(squares, std::max(0.0, count - *known));
  } else {
    const ir::ValueId freedom = b.AddScalar(b.Neg(b.Number(correction)), count);
    result = b.Div(squares, b.Call("aten::clamp_min", {freedom}, {{"min", 0.0}}));
  }
  if (root) result = b.Sqrt(result);
  if (node.num_results == 1) return AsResultsOf(b, from, node, {result});
  return AsResultsOf(b, from, node, {result, Squeeze(b, mean, r)});
}

}  // namespace

ValuesOrStatus DecomposeVariance(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands) {
  return Variance(b, from, node, operands, /*root=*/false);
}
ValuesOrStatus DecomposeDeviation(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  return Variance(b, from, node, operands, /*root=*/true);
}

// `order` is passed at run time if it is none of the orders below that are functions of their own.
ir::ValueId NormOf(Builder& b, ir::ValueId x, const Attr& order, const std::vector<int64_t>& dims,
                   bool keepdim) {
  const std::optional<double> p = Known(order);
  if (p != 2 || IsComplex(b.type(x).dtype)) x = b.Call("aten::abs", {x});
  if (p == kInfinitePower) return b.Amax(x, dims, keepdim);
  if (p == -kInfinitePower) return b.Call("aten::amin", {x}, {{"dim", dims}, {"keepdim", keepdim}});
  if (p == 0) {
    const ir::ValueId counted = b.Call("aten::ne.Scalar", {x}, {{"other", 0.0}});
    return b.Sum(b.Cast(counted, b.type(x).dtype), dims, keepdim);
  }
  if (p == 1) return b.Sum(x, dims, keepdim);
  if (p == 2) return b.Sqrt(b.Sum(b.Square(x), dims, keepdim));
  const ir::ValueId sum =
      b.Sum(b.Call("aten::pow.Tensor_Scalar", {x}, {{"exponent", order}}), dims, keepdim);
  if (p.has_value()) return b.Call("aten::pow.Tensor_Scalar", {sum}, {{"exponent", 1 / *p}});
  const ir::ValueId root = b.Call("aten::reciprocal", {b.Number(order)});
  return b.Call("aten::pow.Tensor_Tensor", {sum, root});
}

ValuesOrStatus DecomposeNorm(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  const ReducedDims r(from, node);
  const char* name = node.attributes.Find("ord") != nullptr ? "ord" : "p";
  const ir::ValueId x = Upcast(b, CastToAttr(b, operands[0], node));
  return AsResultsOf(b, from, node, {NormOf(b, x, NumberOr(node, name, 2), r.dims, r.keepdim)});
}

// The norm of the difference of two tensors that broadcast.
ValuesOrStatus DecomposeDist(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  const ir::ValueId x = Upcast(b, b.Sub(operands[0], operands[1]));
  const std::vector<int64_t> all = DimList(std::vector<bool>(b.rank(x), true));
  return AsResultsOf(b, from, node, {NormOf(b, x, NumberOr(node, "p", 2), all, /*keepdim=*/false)});
}

ValuesOrStatus DecomposeLogSumExp(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const ReducedDims r(from, node);
  // There is no maximum of complex numbers or of an empty tensor.
  if (IsComplex(r.type.dtype) || r.type.NumElements() == 0) return Values{};
  ir::ValueId x = Upcast(b, operands[0]);
  if (IsIntegral(b.type(x).dtype, /*include_bool=*/true)) x = b.Cast(x, DType::kF32);
  const ir::ValueId top = FiniteAmax(b, x, r.dims);
  const ir::ValueId sum = b.Sum(b.Exp(b.Sub(x, top)), r.dims, /*keepdim=*/true);
  return AsResultsOf(b, from, node, {Squeeze(b, b.Add(b.Log(sum), top), r)});
}

namespace {

// The least index of an element that equals the extremum (NaN is the extremum if there is any).
// Without a "dim" it is an index into the flattened tensor.
ValuesOrStatus ArgExtremum(Builder& b, const ir::Graph& from, const ir::Node& node,
                           Operands operands, absl::string_view extremum) {
  const ReducedDims r(from, node);
  const ir::ValueId x = operands[0];
  const ir::ValueId top = b.Call(extremum, {x}, {{"dim", r.dims}, {"keepdim", true}});
  ir::ValueId hit = b.Call("aten::eq.Tensor", {x, top});
  if (IsFloating(r.type.dtype)) {
    hit = b.Call("aten::logical_or", {hit, b.Call("aten::isnan", {x})});
  }
  ir::ValueId index = ir::kNoValue;
  int64_t stride = 1;
  for (int d = r.type.rank() - 1; d >= 0; --d) {
    if (!r.named[d]) continue;
    const ir::ValueId part =
        b.MulScalar(b.Iota(r.type.dims[d], d, r.type.rank()), static_cast<double>(stride));
    index = index == ir::kNoValue ? part : b.Add(index, part);
    stride *= r.type.dims[d];
  }
  if (index == ir::kNoValue) index = b.Constant(0, DType::kI64);  // a scalar
  const ir::ValueId beyond = b.Constant(static_cast<double>(r.count), DType::kI64);
  const ir::ValueId first = b.Call("aten::amin", {b.Where(hit, index, beyond)},
                                   {{"dim", r.dims}, {"keepdim", r.keepdim}});
  if (node.num_results == 1) return Values{first};
  return Values{Squeeze(b, top, r), first};
}

}  // namespace

ValuesOrStatus DecomposeArgMax(Builder& b, const ir::Graph& from, const ir::Node& node,
                               Operands operands) {
  return ArgExtremum(b, from, node, operands, "aten::amax");
}
ValuesOrStatus DecomposeArgMin(Builder& b, const ir::Graph& from, const ir::Node& node,
                               Operands operands) {
  return ArgExtremum(b, from, node, operands, "aten::amin");
}

ValuesOrStatus DecomposeAMinMax(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  const ReducedDims r(from, node);
  const Attributes attributes = {{"dim", r.dims}, {"keepdim", r.keepdim}};
  return Values{b.Call("aten::amin", {operands[0]}, attributes),
                b.Call("aten::amax", {operands[0]}, attributes)};
}

namespace {

enum class Softmax { kPlain, kSafe, kLog };

ValuesOrStatus SoftmaxOf(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands,
                         Softmax form) {
  const ReducedDims r(from, node);
  ir::ValueId x = Upcast(b, CastToAttr(b, operands[0], node));
  if (r.type.NumElements() == 0) return AsResultsOf(b, from, node, {x});  // no row has a maximum
  if (from.type(node.first_result).dtype == DType::kF32) x = b.Cast(x, DType::kF32);
  const bool safe = form == Softmax::kSafe;
  const ir::ValueId top = safe ? FiniteAmax(b, x, r.dims) : b.Amax(x, r.dims, /*keepdim=*/true);
  const ir::ValueId shifted = b.Sub(x, top);
  const ir::ValueId exp = b.Exp(shifted);
  ir::ValueId sum = b.Sum(exp, r.dims, /*keepdim=*/true);
  if (form == Softmax::kLog) {
    return AsResultsOf(b, from, node, {b.Sub(shifted, b.Log(sum))});
  }
  if (safe) {  // a row of -inf gives zeros
    const ir::ValueId empty = b.Call("aten::eq.Scalar", {sum}, {{"other", 0.0}});
    sum = b.Where(empty, b.Constant(1, b.type(sum).dtype), sum);
  }
  return AsResultsOf(b, from, node, {b.Div(exp, sum)});
}

}  // namespace

ValuesOrStatus DecomposeSoftmax(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  return SoftmaxOf(b, from, node, operands, Softmax::kPlain);
}
ValuesOrStatus DecomposeSafeSoftmax(Builder& b, const ir::Graph& from, const ir::Node& node,
                                    Operands operands) {
  return SoftmaxOf(b, from, node, operands, Softmax::kSafe);
}
ValuesOrStatus DecomposeLogSoftmax(Builder& b, const ir::Graph& from, const ir::Node& node,
                                   Operands operands) {
  return SoftmaxOf(b, from, node, operands, Softmax::kLog);
}

ValuesOrStatus DecomposeSoftmaxBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                        Operands operands) {
  const ReducedDims r(from, node);
  const ir::ValueId grad = Upcast(b, operands[0]);
  const ir::ValueId output = Upcast(b, operands[1]);
  const ir::ValueId weighted = b.Mul(grad, output);
  const ir::ValueId sum = b.Sum(weighted, r.dims, /*keepdim=*/true);
  return AsResultsOf(b, from, node, {b.Sub(weighted, b.Mul(output, sum))});
}
ValuesOrStatus DecomposeLogSoftmaxBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                           Operands operands) {
  const ReducedDims r(from, node);
  const ir::ValueId grad = Upcast(b, operands[0]);
  const ir::ValueId output = Upcast(b, operands[1]);
  const ir::ValueId sum = b.Sum(grad, r.dims, /*keepdim=*/true);
  const ir::ValueId exp = b.Exp(output);
  return AsResultsOf(b, from, node, {b.Sub(grad, b.Mul(exp, sum))});
}

ValuesOrStatus DecomposeGlu(Builder& b, const ir::Graph& from, const ir::Node& node,
                            Operands operands) {
  const ReducedDims r(from, node);
  SPMD_REQUIRE(r.dims.size() == 1, "glu of a scalar");
  const int64_t half = r.type.dims[r.dims[0]] / 2;
  auto slice = [&](int64_t begin) {
    return Upcast(b, b.Slice(operands[0], r.dims[0], begin, begin + half));
  };
  return AsResultsOf(b, from, node, {b.Mul(slice(0), b.Call("aten::sigmoid", {slice(half)}))});
}

ValuesOrStatus DecomposeGluBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                    Operands operands) {
  const ReducedDims r(from, node);
  SPMD_REQUIRE(r.dims.size() == 1, "the gradient of glu of a scalar");
  const int64_t half = r.type.dims[r.dims[0]];
  auto slice = [&](int64_t begin) {
    return Upcast(b, b.Slice(operands[1], r.dims[0], begin, begin + half));
  };
  const ir::ValueId gate = b.Call("aten::sigmoid", {slice(half)});
  const ir::ValueId of_value = b.Mul(Upcast(b, operands[0]), gate);
  const ir::ValueId slope = b.AddScalar(b.Neg(gate), 1);
  const ir::ValueId of_gate = b.Mul(b.Mul(slope, of_value), slice(0));
  return AsResultsOf(
      b, from, node,
      b.CallAll("aten::cat", {of_value, of_gate}, {{"dim", int64_t{r.dims[0]}}}, {{0, 2}}));
}

}  // namespace spmd::rules
