// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/resample.h"

#include <utility>

namespace spmd::rules {
namespace {

Attributes AttributesOf(const Resampling& r, int64_t dim, int64_t size) {
  return {{"dim", dim},           {"filter", r.filter},   {"step", r.step},
          {"start", r.start},     {"stop", r.stop},       {"unit", r.unit},
          {"num_in", r.num_in},   {"num_out", r.num_out}, {"from", int64_t{0}},
          {"offset", int64_t{0}}, {"size", size}};
}

Resampling ResamplingOf(const OpCall& call) {
  const Attributes& a = call.attrs();
  return {a.GetStringOr("filter", ""),
          a.GetInt("step"),
          a.GetInt("start"),
          a.GetInt("stop"),
          a.GetInt("unit"),
          a.GetInt("num_in"),
          a.GetInt("num_out")};
}

// `a` where `distance` is 0 or less, else `b`.
// Requires: 0 <= a <= b < 2^31.
Expr WhereNear(const Expr& distance, const Expr& a, const Expr& b) {
  constexpr int64_t kBeyond = int64_t{1} << 31;
  return Min(a + Max(distance, 0) * kBeyond, b);
}

using NeededFn = ExprInterval (Resampling::*)(const ExprInterval&) const;

OpFactors WindowedFactors(const OpCall& call, NeededFn needed) {
  CallFactors f(call);
  const int dim = static_cast<int>(call.attrs().GetInt("dim"));
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (d != dim) {
      f.Pass(d, d);
      continue;
    }
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    f.OverWindow(0, d, factor, (ResamplingOf(call).*needed)(WindowShard()));
  }
  return f.Take();
}

// Sets "size", and where the tile and its window begin.
Attributes LocalOf(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                   NeededFn needed) {
  const int dim = static_cast<int>(call.attrs().GetInt("dim"));
  Attributes local = call.attrs();
  if (!IsCut(factors.results[0][dim], cut)) return local;
  const ExprInterval tile = ResultShard(dim);
  local.Set("offset", ToAttr(tile.begin));
  local.Set("size", ToAttr(Expr::Size(Result(0), dim)));
  local.Set("from", ToAttr((ResamplingOf(call).*needed)(tile).begin));
  return local;
}

}  // namespace

ExprInterval Resampling::InputsOf(const ExprInterval& outputs) const {
  Expr begin = FloorDiv(outputs.begin * step + start, unit);
  Expr end = FloorDiv((outputs.end - 1) * step + stop, unit);
  if (filter == "reflect") {
    // The last output is as far behind the last input as the mirrored input is before it.
    const Expr first = begin;
    begin = Min(begin, CheckedMul(2, CheckedSub(num_in, 1)) - (end - 1));
    end = Max(end, Expr(1) - first);
  }
  return {Clamp(begin, 0, CheckedSub(num_in, 1)), Clamp(end, 1, num_in)};
}

ExprInterval Resampling::OutputsOf(const ExprInterval& inputs) const {
  const Expr begin =
      Clamp(CeilDiv((inputs.begin + 1) * unit - stop, step), 0, CheckedSub(num_out, 1));
  const Expr end = Clamp(CeilDiv(inputs.end * unit - start, step), 1, num_out);
  // Outputs outside read inputs near the border: the first or last one or, if reflected, as many as
  // there are outputs outside.
  const bool any_before = CeilDiv(CheckedSub(unit, stop), step) > 0;
  const bool any_after = CeilDiv(CheckedSub(CheckedMul(num_in, unit), start), step) < num_out;
  const int64_t before = filter == "reflect" ? CheckedSub(0, First(0)) : 0;
  const int64_t after = filter == "reflect" ? CheckedSub(End(CheckedSub(num_out, 1)), num_in) : 0;
  return {any_before ? WhereNear(inputs.begin - before, 0, begin) : begin,
          any_after ? num_out - WhereNear(num_in - after - inputs.end, 0, num_out - end) : end};
}

ir::ValueId Resample(Builder& b, ir::ValueId input, int dim, const Resampling& r) {
  return b.Call("spmd::resample", {input}, AttributesOf(r, dim, r.num_out));
}

ir::ValueId ResampleDInput(Builder& b, ir::ValueId grad, int dim, const Resampling& r) {
  return b.Call("spmd::resample_dinput", {grad}, AttributesOf(r, dim, r.num_in));
}

absl::StatusOr<OpFactors> ResampleFactors(const OpCall& call) {
  return WindowedFactors(call, &Resampling::InputsOf);
}

absl::StatusOr<OpFactors> ResampleDInputFactors(const OpCall& call) {
  return WindowedFactors(call, &Resampling::OutputsOf);
}

absl::StatusOr<std::vector<TensorType>> ResampleTypes(const OpCall& call) {
  TensorType type = call.operand(0);
  type.dims[call.attrs().GetInt("dim")] = call.attrs().GetInt("size");
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalResample(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  return LocalOf(call, factors, cut, &Resampling::InputsOf);
}

Attributes LocalResampleDInput(const OpCall& call, const OpFactors& factors,
                               const CutFactors& cut) {
  return LocalOf(call, factors, cut, &Resampling::OutputsOf);
}

}  // namespace spmd::rules
