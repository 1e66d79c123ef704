// SPDX-License-Identifier: Apache-2.0
// Reductions over named dimensions, and ops that need a dimension whole: scans, sorts, softmax.
#include <cmath>
#include <limits>

#include "csrc/rules/families.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/nll.h"
#include "csrc/rules/tables/reduced_dims.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

std::vector<bool> Reduced(const OpCall& call) {
  return NamedDims(call.attrs(), "dim", call.operand(0).rank());
}

template <ReduceKind kind>
absl::StatusOr<OpFactors> Reduce(const OpCall& call) {
  return ReduceFactors(call, Reduced(call), {.reduce = kind});
}

absl::StatusOr<OpFactors> ReduceWhole(const OpCall& call) {
  return ReduceFactors(call, Reduced(call), {.whole = true});
}

// Norms whose partial results combine need no decomposition: 0 and 1 are sums, the infinite ones
// extrema. An order that is passed at run time is none of these.
absl::StatusOr<OpFactors> NormFactors(const OpCall& call) {
  const char* name = call.attrs().Find("ord") != nullptr ? "ord" : "p";
  const Attr* const order = call.attrs().Find(name);
  const bool at_run_time = order != nullptr && std::holds_alternative<RuntimeScalar>(*order);
  const double p = at_run_time ? 2 : call.attrs().GetDoubleOr(name, 2);
  Factor proto;
  if (std::isinf(p))
    proto.reduce = p > 0 ? ReduceKind::kMax : ReduceKind::kMin;
  else
    proto.whole = p != 0 && p != 1;
  return ReduceFactors(call, Reduced(call), proto);
}

// renorm: every dimension but the named one is whole.
absl::StatusOr<OpFactors> OthersWhole(const OpCall& call) {
  std::vector<bool> whole = Reduced(call);
  whole.flip();
  return WholeDimFactors(call, whole);
}

// Counts of elements, or of weighted rows in bins of several columns, add up. The bins of a histc
// without bounds depend on all elements, so it runs whole.
absl::StatusOr<OpFactors> HistogramFactors(const OpCall& call) {
  OpFactors f = WholeFactors(call);
  const Attr *min = call.attrs().Find("min"), *max = call.attrs().Find("max");
  if (min != nullptr && max != nullptr && *min == *max) return f;
  const bool rows = !call.groups.empty();
  const int counted = call.operand(0).rank() - (rows ? 1 : 0);
  for (int d = 0; d < counted; ++d) {
    f.factors.push_back({.size = call.operand(0).dims[d]});
    f.operands[0][d].push_back(d);
    const int weight = rows ? call.groups[0].begin + call.groups[0].size : 1;
    if (rows && call.has(weight)) f.operands[weight][d].push_back(d);
  }
  return f;
}

// Operand `Data` with its segments along "axis": dimensions before and after the axis pass.
template <int Data>
absl::StatusOr<OpFactors> SegmentFactors(const OpCall& call) {
  const TensorType& data = call.operand(Data);
  const int64_t axis = call.Dim("axis", data.rank());
  OpFactors f;
  for (int d = 0; d < data.rank(); ++d) {
    f.factors.push_back({.size = data.dims[d], .whole = d == axis});
  }
  auto factors_of = [&](const TensorType* type) {
    TensorFactors tensor(type == nullptr ? 0 : type->rank());
    for (int d = 0; d < static_cast<int>(tensor.size()); ++d) {
      if (type->dims[d] == data.dims[d] && (d != axis || type->dims == data.dims)) {
        tensor[d].push_back(d);
      }
    }
    return tensor;
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(&type));
  return f;
}

TensorType ReducedType(const OpCall& call, DType dtype) {
  const TensorType& x = call.operand(0);
  return {dtype, ReducedSizes(x.dims, Reduced(call), call.attrs().GetBoolOr("keepdim", false))};
}

DType DTypeAttrOr(const OpCall& call, DType fallback) {
  const Attr* attr = call.attrs().Find("dtype");
  return attr != nullptr && std::holds_alternative<DType>(*attr) ? std::get<DType>(*attr)
                                                                 : fallback;
}

using Types = absl::StatusOr<std::vector<TensorType>>;

// Integers are summed in i64.
DType SumDType(const OpCall& call) {
  const DType t = call.operand(0).dtype;
  return DTypeAttrOr(call, IsIntegral(t, /*include_bool=*/true) ? DType::kI64 : t);
}
Types SumTypes(const OpCall& call) {
  return std::vector<TensorType>{ReducedType(call, SumDType(call))};
}
Types ReducedTypes(const OpCall& call) {
  return std::vector<TensorType>{ReducedType(call, DTypeAttrOr(call, call.operand(0).dtype))};
}
Types AnyTypes(const OpCall& call) {
  const bool bytes = call.operand(0).dtype == DType::kU8;
  return std::vector<TensorType>{ReducedType(call, bytes ? DType::kU8 : DType::kBool)};
}
Types IndexTypes(const OpCall& call) {
  return std::vector<TensorType>{ReducedType(call, DType::kI64)};
}
Types ScanTypes(const OpCall& call) {
  return std::vector<TensorType>{{SumDType(call), call.operand(0).dims}};
}
Types TopKTypes(const OpCall& call) {
  TensorType values = call.operand(0);
  if (values.rank() > 0) values.dims[call.Dim("dim", values.rank())] = call.attrs().GetInt("k");
  return std::vector<TensorType>{values, {DType::kI64, values.dims}};
}
Types GluTypes(const OpCall& call) {
  TensorType half = call.operand(0);
  int64_t& size = half.dims[call.Dim("dim", half.rank())];
  SPMD_REQUIRE(size % 2 == 0, "glu halves a dimension of ", size);
  size /= 2;
  return std::vector<TensorType>{half};
}
Types GluBackwardTypes(const OpCall& call) { return std::vector<TensorType>{call.operand(1)}; }
// _softmax and _log_softmax.
Types SoftmaxTypes(const OpCall& call) {
  const bool wider = call.attrs().GetBoolOr("half_to_float", false);
  return std::vector<TensorType>{
      {wider ? DType::kF32 : DTypeAttrOr(call, call.operand(0).dtype), call.operand(0).dims}};
}

Types SoftmaxBackwardTypes(const OpCall& call) {
  const Attr* dtype = call.attrs().Find("input_dtype");
  const bool given = dtype != nullptr && std::holds_alternative<DType>(*dtype);
  return std::vector<TensorType>{
      {given ? std::get<DType>(*dtype) : call.operand(0).dtype, call.operand(0).dims}};
}

constexpr Row kSum = Computed("", Reduce<ReduceKind::kSum>).CannotFail();
constexpr Row kWhole = Computed("", ReduceWhole).CannotFail();
constexpr Row kAlong =
    Computed("", NamedDimsWhole).CannotFail().With(&OpFacts::dims, DimsUse::kInDim);
constexpr Row kSoftmax = kAlong.With(&OpFacts::dims, DimsUse::kAlong);
// Halves that are whole blocks are halves of the dimension of blocks.
constexpr Row kHalves = kAlong.With(&OpFacts::blocks, BlockUse::kJoin);
constexpr Row kSoftmaxBackward = kSoftmax.Each({0}).Types(SoftmaxBackwardTypes);

constexpr auto kReductionRows = Rows(
    All(kSum.Jointly({0}).Types(SumTypes).With(&OpFacts::dims, DimsUse::kReduces),
        {"aten::sum", "aten::sum.dim_IntList"}),
    kSum.Types(SumTypes).Named("aten::nansum"),
    All(kSum.Types(IndexTypes), {"aten::count_nonzero", "aten::count_nonzero.dim_IntList"}),
    All(Computed("", Reduce<ReduceKind::kProd>).CannotFail().Types(SumTypes),
        {"aten::prod", "aten::prod.dim_int"}),
    All(Computed("", Reduce<ReduceKind::kMax>)
            .CannotFail()
            .Types(ReducedTypes)
            .With(&OpFacts::dims, DimsUse::kReduces),
        {"aten::amax", "aten::max"}),
    All(Computed("", Reduce<ReduceKind::kMin>)
            .CannotFail()
            .Types(ReducedTypes)
            .With(&OpFacts::dims, DimsUse::kReduces),
        {"aten::amin", "aten::min"}),
    All(Computed("", Reduce<ReduceKind::kOr>).CannotFail().Types(AnyTypes),
        {"aten::any", "aten::any.dim", "aten::any.dims"}),
    All(Computed("", Reduce<ReduceKind::kAnd>).CannotFail().Types(AnyTypes),
        {"aten::all", "aten::all.dim", "aten::all.dims"}),
    All(kWhole.Jointly({0}).DecomposesAlways(DecomposeMean).Types(ReducedTypes),
        {"aten::mean", "aten::mean.dim"}),
    All(kWhole.Decomposes(DecomposeVariance),
        {"aten::var.correction", "aten::var_mean.correction"}),
    All(kWhole.Decomposes(DecomposeDeviation),
        {"aten::std.correction", "aten::std_mean.correction"}),
    All(Computed("", NormFactors).CannotFail().Decomposes(DecomposeNorm),
        {"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim",
         "aten::norm.ScalarOpt_dtype", "aten::norm.ScalarOpt_dim_dtype"}),
    kWhole.Decomposes(DecomposeLogSumExp).Named("aten::logsumexp"),
    kWhole.Decomposes(DecomposeArgMax).Types(IndexTypes).Named("aten::argmax"),
    kWhole.Decomposes(DecomposeArgMin).Types(IndexTypes).Named("aten::argmin"),
    kWhole.Decomposes(DecomposeArgMax).Named("aten::max.dim"),
    kWhole.Decomposes(DecomposeArgMin).Named("aten::min.dim"),
    kWhole.Decomposes(DecomposeAMinMax).Named("aten::aminmax"),
    All(kWhole, {"aten::median", "aten::nanmedian", "aten::median.dim", "aten::nanmedian.dim",
                 "aten::mode", "aten::kthvalue", "aten::hash_tensor"}),
    kSoftmax.Decomposes(DecomposeSoftmax).Types(SoftmaxTypes).Named("aten::_softmax"),
    kSoftmax.Decomposes(DecomposeLogSoftmax).Types(SoftmaxTypes).Named("aten::_log_softmax"),
    kSoftmax.Decomposes(DecomposeSafeSoftmax).Types(SoftmaxTypes).Named("aten::_safe_softmax"),
    kSoftmaxBackward.Decomposes(DecomposeSoftmaxBackward).Named("aten::_softmax_backward_data"),
    kSoftmaxBackward.Decomposes(DecomposeLogSoftmaxBackward)
        .Combines(AsCrossEntropyDInput)
        .Named("aten::_log_softmax_backward_data"),
    kAlong.Jointly({0}).Decomposes(DecomposeCumsum).Types(ScanTypes).Named("aten::cumsum"),
    kAlong.Decomposes(DecomposeCumprod).Types(ScanTypes).Named("aten::cumprod"),
    All(kAlong, {"aten::logcumsumexp", "aten::_logcumsumexp", "aten::cummax", "aten::cummin",
                 "aten::sort", "aten::sort.stable"}),
    kAlong.Decomposes(DecomposeTopK).Types(TopKTypes).Named("aten::topk"),
    Computed("", OthersWhole).CannotFail().Named("aten::renorm"),
    Einsum("aten::bucketize.Tensor", "..., [n] -> ..."),
    Rewritten("aten::dist", DecomposeDist).CannotFail(),
    Computed("aten::_histogramdd_from_bin_tensors", HistogramFactors),
    Computed("aten::histc", HistogramFactors), Computed("aten::segment_reduce", SegmentFactors<0>),
    Computed("aten::_segment_reduce_backward", SegmentFactors<2>),
    Einsum("aten::trace", "[m] [n] -> ()").Decomposes(DecomposeTrace).CannotFail(),
    kHalves.Decomposes(DecomposeGlu).Types(GluTypes).Named("aten::glu"),
    kHalves.Decomposes(DecomposeGluBackward).Types(GluBackwardTypes).Named("aten::glu_backward"));
static_assert(AreRowsOf(Family::kReduction, kReductionRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> ReductionRows() { return kReductionRows; }

}  // namespace spmd::rules
