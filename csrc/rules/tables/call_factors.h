// SPDX-License-Identifier: Apache-2.0
// Helpers to write the factors and the local attributes of a call whose rule is a function.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/row.h"

namespace spmd::rules {

// [begin, end) in indices of an operand's dimension.
struct ExprInterval {
  Expr begin = 0;
  Expr end = 0;
  Expr size() const { return end - begin; }
};

// x limited to [low, high].
Expr Clamp(const Expr& x, const Expr& low, const Expr& high);

// The shard of the factor; the interval of a window is a function of it.
inline ExprInterval WindowShard() {
  return {Expr::Start(Result(0), 0), Expr::Start(Result(0), 0) + Expr::Size(Result(0), 0)};
}
// The interval that a tile of result 0 covers along `dim`, for local attributes.
inline ExprInterval ResultShard(int dim) {
  return {Expr::Start(Result(0), dim), Expr::Start(Result(0), dim) + Expr::Size(Result(0), dim)};
}

// Builds OpFactors. At first no dimension has a factor; each call appends a factor to a dimension,
// major first.
class CallFactors {
 public:
  explicit CallFactors(const OpCall& call);

  int Add(int64_t size);
  int AddWhole(int64_t size);
  // Both throw if the dimension does not exist.
  void OverOperand(int operand, int dim, int factor);
  void OverResult(int dim, int factor, int result = 0);
  // Appends the factor to a dimension that is read through the window `needed`, a function of
  // WindowShard().
  void OverWindow(int operand, int dim, int factor, const ExprInterval& needed, double fill = 0);
  // The same for a result whose indices along the dimension are those of the operand in that order.
  // The call on tiles leaves them in the order in which it gets them. `needed`: other indices in
  // that order than those of the shard.
  void OverOrder(int operand, int dim, int factor, std::vector<Interval> order);
  void OverOrder(int operand, int dim, int factor, std::vector<Interval> order,
                 const ExprInterval& needed);
  // Adds a factor over a dimension of operand 0 and a dimension of result 0.
  int Pass(int operand_dim, int result_dim);

  OpFactors Take() { return std::move(factors_); }

 private:
  const OpCall& call_;
  OpFactors factors_;
};

// A result dimension comes from a dimension of operand 0, or
inline constexpr int kRepeated = -1;  // from nothing: all indices along it are equal
inline constexpr int kMade = -2;      // from the op itself, which needs it whole
// Factors of an op that moves, drops and adds dimensions, where result dimension d comes from
// source[d]. A dimension that broadcasts counts as kRepeated; an operand dimension that no result
// dimension comes from is whole.
OpFactors MappedFactors(const OpCall& call, absl::Span<const int> source);
// The dims of the result, where dimensions that are repeated or made have size 1.
Dims MappedDims(const Dims& operand, absl::Span<const int> source);

// The factors of an op that cannot be sharded: every device computes it in full.
absl::StatusOr<OpFactors> NoFactors(const OpCall& call);
// The factors by einsum text, for ops where an attribute or a rank decides between several texts.
absl::StatusOr<OpFactors> FactorsByText(const OpCall& call, absl::string_view text);
// The row of an op that is always rewritten in core ops by `as`.
constexpr Row Rewritten(absl::string_view op, DecomposeFn as) {
  return Computed(op, NoFactors).DecomposesAlways(as);
}

// True if any factor of the dimension is sharded.
bool IsCut(const DimFactors& dim, const CutFactors& cut);
// True if the operand's dimension is read through a window.
bool IsWindowed(const OpFactors& factors, const CutFactors& cut, int operand, int dim);

// The expressions as an attribute, which holds plain integers if all are constant.
Attr ToAttr(const Expr& e);
Attr ToAttr(const std::vector<Expr>& list);
// The dims of a tile of result `result`, as expressions where they are sharded.
Attr LocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int result = 0);
// The attributes of the call with `name` set to the dims of a tile of result 0.
Attributes WithLocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                         absl::string_view name);

// Flops per point of an op that moves elements by index, so that only its traffic counts. (0 is for
// views, which cost nothing.)
inline constexpr double kTrafficOnly = 1e-9;

// The type of operand 0.
absl::StatusOr<std::vector<TensorType>> SameTypes(const OpCall& call);

}  // namespace spmd::rules
