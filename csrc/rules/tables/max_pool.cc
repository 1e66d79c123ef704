// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/max_pool.h"

#include <limits>
#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/sliding.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

int PlaneRank(const OpCall& call) { return static_cast<int>(call.attrs().GetInts("plane").size()); }

Attributes WithPlane(Attributes attrs, const OpCall& call, int rank, const Dims& plane) {
  for (const auto& [name, value] : PoolLists(call, rank)) attrs.Set(name, value);
  attrs.Set("offset", std::vector<int64_t>(rank, 0));
  attrs.Set("plane", SpatialSizes(plane, rank));
  return attrs;
}

// "offset" plus `by(d, i)` along each spatial dimension d = leading + i that is sharded.
template <typename By>
Attr LocalWindowOffset(const OpCall& call, const OpFactors& factors, const CutFactors& cut, By by) {
  const int rank = PlaneRank(call);
  const int leading = call.results[0].rank() - rank;
  const std::vector<int64_t>& offset = call.attrs().GetInts("offset");
  std::vector<Expr> local;
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    local.push_back(IsCut(factors.results[0][d], cut) ? by(d, i) + offset[i] : Expr(offset[i]));
  }
  return ToAttr(local);
}

}  // namespace

absl::StatusOr<OpFactors> MaxPoolWithIndicesFactors(const OpCall& call, int rank) {
  // Windows fill with minus infinity, so only floating types can be sharded spatially.
  if (IsFloating(call.operand(0).dtype)) return SpatialWholeFactors(call, rank);
  CallFactors f(call);
  PassLeading(f, call, rank);
  return f.Take();
}

absl::StatusOr<std::vector<ValueId>> MaxPoolByOffset(Builder& b, const OpCall& call,
                                                     Operands operands, int rank) {
  Attributes attrs = {{"output_size", SpatialSizes(call.results[0].dims, rank)}};
  return b.CallAll("spmd::max_pool", {operands[0]},
                   WithPlane(std::move(attrs), call, rank, call.operand(0).dims));
}

absl::StatusOr<std::vector<ValueId>> MaxPoolBackwardByOffset(Builder& b, const OpCall& call,
                                                             Operands operands, int rank) {
  Attributes attrs = {{"input_size", SpatialSizes(call.operand(1).dims, rank)}};
  return b.CallAll("spmd::max_pool_dinput", {operands[0], operands[2]},
                   WithPlane(std::move(attrs), call, rank, call.operand(1).dims));
}

absl::StatusOr<OpFactors> MaxPoolFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = PlaneRank(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor, 0);
    f.OverResult(d, factor, 1);
    f.OverWindow(0, d, factor, PoolOf(call, i).InputsOf(WindowShard()),
                 -std::numeric_limits<double>::infinity());
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> MaxPoolTypes(const OpCall& call) {
  const TensorType out = WithSpatialSizes(call.operand(0), call.attrs().GetInts("output_size"));
  return std::vector<TensorType>{out, {DType::kI64, out.dims}};
}

Attributes LocalMaxPool(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const int rank = PlaneRank(call);
  Attributes local = LocalOutputSize(call, factors, cut, rank);
  local.Set("padding", LocalPadding(call, factors, cut, 0, rank));
  local.Set("offset", LocalWindowOffset(call, factors, cut, [&](int d, int i) {
              return PoolOf(call, i).InputsOf(ResultShard(d)).begin;
            }));
  return local;
}

absl::StatusOr<OpFactors> MaxPoolDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = PlaneRank(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    const ExprInterval needed = PoolOf(call, i).OutputsOf(WindowShard());
    f.OverWindow(0, d, factor, needed);
    f.OverWindow(1, d, factor, needed);
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> MaxPoolDInputTypes(const OpCall& call) {
  return std::vector<TensorType>{
      WithSpatialSizes(call.operand(0), call.attrs().GetInts("input_size"))};
}

Attributes LocalMaxPoolDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const int rank = PlaneRank(call);
  Attributes local = call.attrs();
  local.Set("input_size", LocalSpatialSizes(call, factors, cut, Result(0), rank));
  local.Set("offset", LocalWindowOffset(call, factors, cut,
                                        [](int d, int) { return Expr::Start(Result(0), d); }));
  return local;
}

}  // namespace spmd::rules
