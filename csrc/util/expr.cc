// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/expr.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

using Op = Expr::Op;

bool IsTensorVariable(Op op) { return op == Op::kStart || op == Op::kSize || op == Op::kExtent; }
bool IsVariable(Op op) { return IsTensorVariable(op) || op == Op::kCoord; }
bool IsBinary(Op op) { return op != Op::kConst && !IsVariable(op); }

// The function name of an op that is written as a call; null for constants and infix operators.
const char* FunctionName(Op op) {
  switch (op) {
    case Op::kStart:
      return "start";
    case Op::kSize:
      return "size";
    case Op::kExtent:
      return "extent";
    case Op::kCoord:
      return "coord";
    case Op::kFloorDiv:
      return "floordiv";
    case Op::kCeilDiv:
      return "ceildiv";
    case Op::kMin:
      return "min";
    case Op::kMax:
      return "max";
    case Op::kConst:
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
      return nullptr;
  }
  return nullptr;
}

// Uses unsigned arithmetic, which wraps around: programs come from text, and text may hold any
// number.
int64_t Apply(Op op, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a);
  const auto ub = static_cast<uint64_t>(b);
  switch (op) {
    case Op::kAdd:
      return static_cast<int64_t>(ua + ub);
    case Op::kSub:
      return static_cast<int64_t>(ua - ub);
    case Op::kMul:
      return static_cast<int64_t>(ua * ub);
    case Op::kFloorDiv:
      return b <= 0 ? 0 : a / b - (a % b < 0 ? 1 : 0);
    case Op::kCeilDiv:
      return b <= 0 ? 0 : a / b + (a % b > 0 ? 1 : 0);
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    default:
      break;
  }
  SPMD_CHECK(false, "not a binary operator");
  return 0;
}

}  // namespace

struct Expr::Node {
  Op op = Op::kConst;
  int64_t value = 0;
  TensorRef tensor;
  int dim = 0;
  Expr lhs;
  Expr rhs;
};

Expr::Expr(int64_t value)
    : node_(std::make_shared<const Node>(
          Node{Op::kConst, value, {}, 0, Expr(nullptr), Expr(nullptr)})) {}

Expr Expr::Start(TensorRef tensor, int dim) {
  return Expr(
      std::make_shared<const Node>(Node{Op::kStart, 0, tensor, dim, Expr(nullptr), Expr(nullptr)}));
}
Expr Expr::Size(TensorRef tensor, int dim) {
  return Expr(
      std::make_shared<const Node>(Node{Op::kSize, 0, tensor, dim, Expr(nullptr), Expr(nullptr)}));
}
Expr Expr::Extent(TensorRef tensor, int dim) {
  return Expr(std::make_shared<const Node>(
      Node{Op::kExtent, 0, tensor, dim, Expr(nullptr), Expr(nullptr)}));
}
Expr Expr::Coord(int sub_axis) {
  return Expr(std::make_shared<const Node>(
      Node{Op::kCoord, 0, {}, sub_axis, Expr(nullptr), Expr(nullptr)}));
}

Expr Expr::Binary(Op op, const Expr& a, const Expr& b) {
  SPMD_CHECK(IsBinary(op), "not a binary operator");
  const bool divides = op == Op::kFloorDiv || op == Op::kCeilDiv;
  SPMD_REQUIRE(!divides || !b.IsConst() || b.value() > 0, "divisor ", b.ToString());
  if (a.IsConst() && b.IsConst()) return Apply(op, a.value(), b.value());
  const bool commutes = op == Op::kAdd || op == Op::kMul || op == Op::kMin || op == Op::kMax;
  if (commutes && a.IsConst()) return Binary(op, b, a);
  if (b.IsConst()) {
    const int64_t c = b.value();
    if (op == Op::kSub) return Binary(Op::kAdd, a, Apply(Op::kSub, 0, c));
    if (op == Op::kAdd && c == 0) return a;
    if (op == Op::kMul && c == 0) return 0;
    if ((op == Op::kMul || divides) && c == 1) return a;
    const bool merges = op == Op::kAdd || op == Op::kMul || op == Op::kMin || op == Op::kMax;
    if (merges && a.op() == op && a.rhs().IsConst()) {
      return Binary(op, a.lhs(), Apply(op, a.rhs().value(), c));
    }
  } else if (a == b) {
    if (op == Op::kSub) return 0;
    if (op == Op::kMin || op == Op::kMax) return a;
  }
  return Expr(std::make_shared<const Node>(Node{op, 0, {}, 0, a, b}));
}

Expr::Op Expr::op() const { return node_->op; }
int64_t Expr::value() const {
  SPMD_CHECK(IsConst(), ToString(), " is no constant");
  return node_->value;
}
TensorRef Expr::tensor() const {
  SPMD_CHECK(IsTensorVariable(op()), ToString(), " speaks of no tensor");
  return node_->tensor;
}
int Expr::dim() const {
  SPMD_CHECK(IsVariable(op()), ToString(), " is no variable");
  return node_->dim;
}
const Expr& Expr::lhs() const { return node_->lhs; }
const Expr& Expr::rhs() const { return node_->rhs; }

int64_t Expr::Evaluate(const Env& env) const {
  const Node& n = *node_;
  switch (n.op) {
    case Op::kConst:
      return n.value;
    case Op::kStart:
      return env.start(n.tensor, n.dim);
    case Op::kSize:
      return env.size(n.tensor, n.dim);
    case Op::kExtent:
      return env.extent(n.tensor, n.dim);
    case Op::kCoord:
      return env.coord(n.dim);
    default:
      return Apply(n.op, n.lhs.Evaluate(env), n.rhs.Evaluate(env));
  }
}

void Expr::ForEachVariable(const std::function<void(const Expr&)>& visit) const {
  if (IsVariable(op())) visit(*this);
  if (!IsBinary(op())) return;
  lhs().ForEachVariable(visit);
  rhs().ForEachVariable(visit);
}

std::string Expr::ToString() const {
  const Node& n = *node_;
  if (n.op == Op::kConst) return absl::StrCat(n.value);
  if (n.op == Op::kCoord) return absl::StrCat("coord(", n.dim, ")");
  if (IsTensorVariable(n.op)) {
    const char letter = n.tensor.kind == TensorRef::Kind::kOperand ? 'o' : 'r';
    return absl::StrCat(FunctionName(n.op), "(", std::string(1, letter), n.tensor.index, ",", n.dim,
                        ")");
  }
  if (const char* name = FunctionName(n.op)) {
    return absl::StrCat(name, "(", n.lhs.ToString(), ",", n.rhs.ToString(), ")");
  }
  auto is_sum = [](const Expr& e) { return e.op() == Op::kAdd || e.op() == Op::kSub; };
  auto bracketed = [](const Expr& e, bool brackets) {
    return brackets ? absl::StrCat("(", e.ToString(), ")") : e.ToString();
  };
  if (n.op == Op::kMul) {
    return absl::StrCat(bracketed(n.lhs, is_sum(n.lhs)), "*",
                        bracketed(n.rhs, is_sum(n.rhs) || n.rhs.op() == Op::kMul));
  }
  const std::string left = n.lhs.ToString();
  if (n.op == Op::kAdd && n.rhs.IsConst() && n.rhs.value() < 0 &&
      n.rhs.value() != std::numeric_limits<int64_t>::min()) {
    return absl::StrCat(left, n.rhs.value());  // start(o0,0)-3
  }
  return absl::StrCat(left, n.op == Op::kAdd ? "+" : "-", bracketed(n.rhs, is_sum(n.rhs)));
}

bool operator==(const Expr& a, const Expr& b) {
  if (a.node_ == b.node_) return true;
  const Expr::Node& x = *a.node_;
  const Expr::Node& y = *b.node_;
  if (x.op != y.op) return false;
  if (x.op == Op::kConst) return x.value == y.value;
  if (x.op == Op::kCoord) return x.dim == y.dim;
  if (IsTensorVariable(x.op)) return x.tensor == y.tensor && x.dim == y.dim;
  return x.lhs == y.lhs && x.rhs == y.rhs;
}

size_t Expr::Hash() const {
  const Node& n = *node_;
  if (n.op == Op::kConst) return absl::HashOf(static_cast<int>(n.op), n.value);
  if (IsVariable(n.op)) {
    return absl::HashOf(static_cast<int>(n.op), static_cast<int>(n.tensor.kind), n.tensor.index,
                        n.dim);
  }
  return absl::HashOf(static_cast<int>(n.op), n.lhs.Hash(), n.rhs.Hash());
}

}  // namespace spmd
