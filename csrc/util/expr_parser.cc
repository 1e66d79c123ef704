// SPDX-License-Identifier: Apache-2.0
// sum     = product { ("+" | "-") product }
// product = primary { "*" primary }
// primary = integer | "(" sum ")" | name "(" arguments ")"
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "csrc/util/expr.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

using Op = Expr::Op;

// Deeper text would exhaust the stack, and no expression of ours is that deep.
constexpr int kMaxDepth = 100;

class ExprParser {
 public:
  explicit ExprParser(Scanner& in) : in_(in) {}

  absl::StatusOr<Expr> Sum() {
    if (++depth_ > kMaxDepth) return in_.Error("a shallower expression");
    SPMD_ASSIGN_OR_RETURN(Expr sum, Product());
    while (true) {
      if (in_.Consume("+")) {
        SPMD_ASSIGN_OR_RETURN(Expr term, Product());
        sum = sum + term;
      } else if (in_.Consume("-")) {
        SPMD_ASSIGN_OR_RETURN(Expr term, Product());
        sum = sum - term;
      } else {
        --depth_;
        return sum;
      }
    }
  }

 private:
  absl::StatusOr<Expr> Product() {
    SPMD_ASSIGN_OR_RETURN(Expr product, Primary());
    while (in_.Consume("*")) {
      SPMD_ASSIGN_OR_RETURN(Expr factor, Primary());
      product = product * factor;
    }
    return product;
  }

  absl::StatusOr<Expr> Primary() {
    const char next = in_.Peek();
    if (absl::ascii_isdigit(next) || next == '-') {
      SPMD_ASSIGN_OR_RETURN(const int64_t value, in_.Integer("an integer"));
      return Expr(value);
    }
    if (in_.Consume("(")) {
      SPMD_ASSIGN_OR_RETURN(Expr inner, Sum());
      SPMD_RETURN_IF_ERROR(in_.Expect(")"));
      return inner;
    }
    const size_t begin = in_.position();
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in_.Identifier("an expression"));
    if (name == "start" || name == "size" || name == "extent") return TensorVariable(name);
    if (name == "coord") {
      SPMD_RETURN_IF_ERROR(in_.Expect("("));
      SPMD_ASSIGN_OR_RETURN(const int axis, Index("the number of a sub-axis"));
      SPMD_RETURN_IF_ERROR(in_.Expect(")"));
      return Expr::Coord(axis);
    }
    if (name == "floordiv") return Function(Op::kFloorDiv);
    if (name == "ceildiv") return Function(Op::kCeilDiv);
    if (name == "min") return Function(Op::kMin);
    if (name == "max") return Function(Op::kMax);
    in_.Seek(begin);
    return in_.Error("start, size, extent, coord, floordiv, ceildiv, min or max");
  }

  absl::StatusOr<int> Index(absl::string_view what) {
    const size_t begin = in_.position();
    SPMD_ASSIGN_OR_RETURN(const int64_t value, in_.Integer(what));
    if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
    in_.Seek(begin);
    return in_.Error(what);
  }

  absl::StatusOr<Expr> TensorVariable(absl::string_view name) {
    SPMD_RETURN_IF_ERROR(in_.Expect("("));
    TensorRef tensor;
    if (in_.Consume("r")) {
      tensor.kind = TensorRef::Kind::kResult;
    } else if (!in_.Consume("o")) {
      return in_.Error("o<k> or r<k>, an operand or a result");
    }
    SPMD_ASSIGN_OR_RETURN(tensor.index, Index("the number of an operand or result"));
    SPMD_RETURN_IF_ERROR(in_.Expect(","));
    SPMD_ASSIGN_OR_RETURN(const int dim, Index("a dimension"));
    SPMD_RETURN_IF_ERROR(in_.Expect(")"));
    if (name == "start") return Expr::Start(tensor, dim);
    if (name == "size") return Expr::Size(tensor, dim);
    return Expr::Extent(tensor, dim);
  }

  absl::StatusOr<Expr> Function(Op op) {
    SPMD_RETURN_IF_ERROR(in_.Expect("("));
    SPMD_ASSIGN_OR_RETURN(Expr a, Sum());
    SPMD_RETURN_IF_ERROR(in_.Expect(","));
    const size_t begin = in_.position();
    SPMD_ASSIGN_OR_RETURN(Expr b, Sum());
    if ((op == Op::kFloorDiv || op == Op::kCeilDiv) && b.IsConst() && b.value() <= 0) {
      in_.Seek(begin);
      return in_.Error("a positive divisor");
    }
    SPMD_RETURN_IF_ERROR(in_.Expect(")"));
    return Expr::Binary(op, a, b);
  }

  Scanner& in_;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<Expr> Expr::Parse(Scanner& in) { return ExprParser(in).Sum(); }

absl::StatusOr<Expr> Expr::Parse(absl::string_view text) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(Expr expr, Parse(in));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return expr;
}

}  // namespace spmd
