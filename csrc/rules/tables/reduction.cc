// SPDX-License-Identifier: Apache-2.0
// Reductions over named dimensions, and ops that need a dimension whole: scans, sorts, softmax.
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/rules/registry.h"
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

// Data with its segments along "axis": dimensions before and after the axis pass.
absl::StatusOr<OpFactors> SegmentFactors(const OpCall& call) {
  const bool backward = absl::EndsWith(call.op, "backward");
  const TensorType& data = call.operand(backward ? 2 : 0);
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

void Rows(std::vector<Rule>& t, const Rule& prototype, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    t.push_back(prototype);
    t.back().op = absl::StrCat("aten::", name);
  }
}

}  // namespace

std::vector<Rule> ReductionRules() {
  std::vector<Rule> t;
  const Rule sum = Computed("", Reduce<ReduceKind::kSum>).CannotFail();
  Rows(t, sum.Jointly({0}).Types(SumTypes), {"sum"});
  Rows(t, sum.Jointly({0}).Types(SumTypes).With(&OpFacts::dims, DimsUse::kSums),
       {"sum.dim_IntList"});
  Rows(t, sum.Types(SumTypes), {"nansum"});
  Rows(t, sum.Types(IndexTypes), {"count_nonzero", "count_nonzero.dim_IntList"});
  Rows(t, Computed("", Reduce<ReduceKind::kProd>).CannotFail().Types(SumTypes),
       {"prod", "prod.dim_int"});
  Rows(t, Computed("", Reduce<ReduceKind::kMax>).CannotFail().Types(ReducedTypes), {"amax", "max"});
  Rows(t, Computed("", Reduce<ReduceKind::kMin>).CannotFail().Types(ReducedTypes), {"amin", "min"});
  Rows(t, Computed("", Reduce<ReduceKind::kOr>).CannotFail().Types(AnyTypes),
       {"any", "any.dim", "any.dims"});
  Rows(t, Computed("", Reduce<ReduceKind::kAnd>).CannotFail().Types(AnyTypes),
       {"all", "all.dim", "all.dims"});

  const Rule whole = Computed("", ReduceWhole).CannotFail();
  Rows(t, whole.Jointly({0}).DecomposesAlways(DecomposeMean).Types(ReducedTypes),
       {"mean", "mean.dim"});
  Rows(t, whole.Decomposes(DecomposeVariance),
       {"var.correction", "std.correction", "var_mean.correction", "std_mean.correction"});
  Rows(t, Computed("", NormFactors).CannotFail().Decomposes(DecomposeNorm),
       {"linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype",
        "norm.ScalarOpt_dim_dtype"});
  Rows(t, whole.Decomposes(DecomposeLogSumExp), {"logsumexp"});
  Rows(t, whole.Decomposes(DecomposeArgExtremum).Types(IndexTypes), {"argmax", "argmin"});
  Rows(t, whole.Decomposes(DecomposeArgExtremum), {"max.dim", "min.dim"});
  Rows(t, whole.Decomposes(DecomposeAMinMax), {"aminmax"});
  Rows(t, whole,
       {"median", "nanmedian", "median.dim", "nanmedian.dim", "mode", "kthvalue", "hash_tensor"});

  const Rule along = Computed("", NamedDimsWhole).CannotFail();
  const Rule softmax = along.With(&OpFacts::dims, DimsUse::kAlong);
  Rows(t, softmax.Decomposes(DecomposeSoftmax).Types(SoftmaxTypes),
       {"_softmax", "_log_softmax", "_safe_softmax"});
  const Rule softmax_backward =
      softmax.Each({0}).Decomposes(DecomposeSoftmaxBackward).Types(SoftmaxBackwardTypes);
  Rows(t, softmax_backward, {"_softmax_backward_data"});
  Rows(t, softmax_backward.Combines(AsCrossEntropyDInput), {"_log_softmax_backward_data"});
  Rows(t, along.Jointly({0}).Decomposes(DecomposeScan).Types(ScanTypes), {"cumsum"});
  Rows(t, along.Decomposes(DecomposeScan).Types(ScanTypes), {"cumprod"});
  Rows(t, along, {"logcumsumexp", "_logcumsumexp", "cummax", "cummin", "sort", "sort.stable"});
  Rows(t, along.Decomposes(DecomposeTopK).Types(TopKTypes), {"topk"});
  Rows(t, Computed("", OthersWhole).CannotFail(), {"renorm"});
  t.push_back(Einsum("aten::bucketize.Tensor", "..., [n] -> ..."));
  t.push_back(Rewritten("aten::dist", DecomposeDist).CannotFail());
  t.push_back(Computed("aten::_histogramdd_from_bin_tensors", HistogramFactors));
  t.push_back(Computed("aten::histc", HistogramFactors));
  Rows(t, Computed("", SegmentFactors), {"segment_reduce", "_segment_reduce_backward"});
  t.push_back(Einsum("aten::trace", "[m] [n] -> ()").Decomposes(DecomposeTrace).CannotFail());
  // Halves that are whole blocks are halves of the dimension of blocks.
  const Rule halves = along.With(&OpFacts::blocks, BlockUse::kJoin);
  Rows(t, halves.Decomposes(DecomposeGlu).Types(GluTypes), {"glu"});
  Rows(t, halves.Decomposes(DecomposeGluBackward).Types(GluBackwardTypes), {"glu_backward"});
  return t;
}

}  // namespace spmd::rules
