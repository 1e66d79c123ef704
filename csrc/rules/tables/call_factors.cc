// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/call_factors.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/einsum.h"
#include "csrc/util/status.h"

namespace spmd::rules {

Expr Clamp(const Expr& x, const Expr& low, const Expr& high) { return Min(Max(x, low), high); }

CallFactors::CallFactors(const OpCall& call) : call_(call), factors_(WholeFactors(call)) {}

int CallFactors::Add(int64_t size) {
  factors_.factors.push_back({.size = size});
  return static_cast<int>(factors_.factors.size()) - 1;
}

int CallFactors::AddWhole(int64_t size) {
  factors_.factors.push_back({.size = size, .whole = true});
  return static_cast<int>(factors_.factors.size()) - 1;
}

void CallFactors::OverOperand(int operand, int dim, int factor) {
  SPMD_REQUIRE(dim >= 0 && dim < call_.operand(operand).rank(), "operand ", operand, ", ",
               call_.operand(operand).ToString(), ", has no dimension ", dim);
  factors_.operands[operand][dim].push_back(factor);
}

void CallFactors::OverResult(int dim, int factor, int result) {
  SPMD_REQUIRE(dim >= 0 && dim < call_.results[result].rank(), "result ", result, ", ",
               call_.results[result].ToString(), ", has no dimension ", dim);
  factors_.results[result][dim].push_back(factor);
}

void CallFactors::OverWindow(int operand, int dim, int factor, const ExprInterval& needed,
                             double fill) {
  OverOperand(operand, dim, factor);
  Window window;
  window.operand = operand;
  window.dim = dim;
  window.factor = factor;
  window.extent = factors_.factors[factor].size;
  window.begin = needed.begin;
  window.end = needed.end;
  window.fill = fill;
  factors_.windows.push_back(std::move(window));
}

void CallFactors::OverOrder(int operand, int dim, int factor, std::vector<Interval> order) {
  OverOrder(operand, dim, factor, std::move(order), WindowShard());
}
void CallFactors::OverOrder(int operand, int dim, int factor, std::vector<Interval> order,
                            const ExprInterval& needed) {
  OverWindow(operand, dim, factor, needed);
  factors_.windows.back().order = std::move(order);
}

int CallFactors::Pass(int operand_dim, int result_dim) {
  const int factor = Add(call_.results[0].dims[result_dim]);
  OverOperand(0, operand_dim, factor);
  OverResult(result_dim, factor);
  return factor;
}

OpFactors MappedFactors(const OpCall& call, absl::Span<const int> source) {
  CallFactors f(call);
  const Dims& from = call.operand(0).dims;
  const Dims& to = call.results[0].dims;
  std::vector<bool> used(from.size(), false);
  for (int d = 0; d < static_cast<int>(source.size()); ++d) {
    if (source[d] == kMade) {
      f.OverResult(d, f.AddWhole(to[d]));
    } else if (source[d] == kRepeated || from[source[d]] != to[d]) {
      f.OverResult(d, f.Add(to[d]));
    } else {
      f.Pass(source[d], d);
    }
    if (source[d] >= 0) used[source[d]] = true;
  }
  for (int d = 0; d < static_cast<int>(from.size()); ++d) {
    if (!used[d]) f.OverOperand(0, d, f.AddWhole(from[d]));
  }
  return f.Take();
}

Dims MappedDims(const Dims& operand, absl::Span<const int> source) {
  Dims dims;
  for (int d : source) dims.push_back(d >= 0 ? operand[d] : 1);
  return dims;
}

absl::StatusOr<OpFactors> NoFactors(const OpCall& call) { return WholeFactors(call); }

absl::StatusOr<OpFactors> FactorsByText(const OpCall& call, absl::string_view text) {
  SPMD_ASSIGN_OR_RETURN(const EinsumPattern pattern, ParseEinsum(text));
  return EinsumFactors(pattern, call);
}

bool IsCut(const DimFactors& dim, const CutFactors& cut) {
  return std::any_of(dim.begin(), dim.end(), [&](int f) { return cut[f]; });
}

bool IsWindowed(const OpFactors& factors, const CutFactors& cut, int operand, int dim) {
  return std::any_of(factors.windows.begin(), factors.windows.end(), [&](const Window& w) {
    return w.operand == operand && w.dim == dim && cut[w.factor];
  });
}

Attr ToAttr(const Expr& e) {
  if (e.IsConst()) return e.value();
  return e;
}

Attr ToAttr(const std::vector<Expr>& list) {
  std::vector<int64_t> constants;
  for (const Expr& e : list) {
    if (!e.IsConst()) return list;
    constants.push_back(e.value());
  }
  return constants;
}

Attr LocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int result) {
  std::vector<Expr> dims;
  for (int d = 0; d < call.results[result].rank(); ++d) {
    dims.push_back(IsCut(factors.results[result][d], cut) ? Expr::Size(Result(result), d)
                                                          : Expr(call.results[result].dims[d]));
  }
  return ToAttr(dims);
}

Attributes WithLocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                         absl::string_view name) {
  Attributes local = call.attrs();
  local.Set(name, LocalDims(call, factors, cut));
  return local;
}

absl::StatusOr<std::vector<TensorType>> SameTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(0)};
}

}  // namespace spmd::rules
