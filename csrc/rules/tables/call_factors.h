// SPDX-License-Identifier: Apache-2.0
// Writing down the factors and the local attributes of a call whose rule is a function.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// [begin, end), in indices of an operand's dimension.
struct ExprInterval {
  Expr begin = 0;
  Expr end = 0;
  Expr size() const { return end - begin; }
};

// x limited to [low, high].
Expr Clamp(const Expr& x, const Expr& low, const Expr& high);

// The shard of the factor that a window's interval is a function of.
inline ExprInterval WindowShard() {
  return {Expr::Start(Result(0), 0), Expr::Start(Result(0), 0) + Expr::Size(Result(0), 0)};
}
// The interval that a tile of result 0 covers along `dim`: for local attributes.
inline ExprInterval ResultShard(int dim) {
  return {Expr::Start(Result(0), dim), Expr::Start(Result(0), dim) + Expr::Size(Result(0), dim)};
}

// Starts with no dimension cut by anything; factors are then laid over dimensions, major first.
class CallFactors {
 public:
  explicit CallFactors(const OpCall& call);

  int Add(int64_t size);
  int AddWhole(int64_t size);
  // Both throw where there is no such dimension.
  void OverOperand(int operand, int dim, int factor);
  void OverResult(int dim, int factor, int result = 0);
  // The factor runs over the operand's dimension through `needed`, a function of WindowShard().
  void OverWindow(int operand, int dim, int factor, const ExprInterval& needed, double fill = 0);
  // A new factor over a dimension of operand 0 and one of result 0.
  int Pass(int operand_dim, int result_dim);

  OpFactors Take() { return std::move(factors_); }

 private:
  const OpCall& call_;
  OpFactors factors_;
};

// What result dimension d comes from: a dimension of operand 0, or
inline constexpr int kRepeated = -1;  // nothing: every index along it is the same
inline constexpr int kMade = -2;      // the op itself, which must see it whole
// Factors of an op that moves, drops and adds dimensions. One that broadcasts is kRepeated by
// itself; one of the operand that no result dimension comes from is whole.
OpFactors MappedFactors(const OpCall& call, absl::Span<const int> source);
// Dims of the result where nothing is repeated or made but size 1.
Dims MappedDims(const Dims& operand, absl::Span<const int> source);

// All of it whole.
absl::StatusOr<OpFactors> NoFactors(const OpCall& call);
// A rule for an op that is always written in core ops.
Rule Rewritten(absl::string_view op, DecomposeFn as);

// Is any factor of the dimension cut?
bool IsCut(const DimFactors& dim, const CutFactors& cut);
// Does the operand's dimension arrive as a window?
bool IsWindowed(const OpFactors& factors, const CutFactors& cut, int operand, int dim);

// Plain integers where no expression is needed.
Attr ToAttr(const Expr& e);
Attr ToAttr(const std::vector<Expr>& list);
// The dims of a tile of result `result`: expressions where it is cut.
Attr LocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int result = 0);
// The attributes of the call with `name` set to the dims of the tile of result 0.
Attributes WithLocalDims(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                         absl::string_view name);

// Flops per point of an op that moves elements by index: only its traffic counts. (None at all is
// for views, which cost nothing.)
inline constexpr double kTrafficOnly = 1e-9;

// The type of operand 0.
absl::StatusOr<std::vector<TensorType>> SameTypes(const OpCall& call);

}  // namespace spmd::rules
