// SPDX-License-Identifier: Apache-2.0
// Integer expressions: the parts of a program that depend on the device, as data.
//
// A program is the same text for every device. Where a device needs a number of its own (the local
// size of a reshape, the first row of its part of an embedding table) the program holds an
// expression over where the device's tiles begin and end, evaluated per tile when the program is
// loaded. Expressions print, parse, compare and hash; no closure crosses into a program.
//
//   Start(Operand(0), 1)                      prints  start(o0,1)
//   Max(Start(Result(0), 0) * 2 - 1, 0)       prints  max(start(r0,0)*2-1,0)
//
// Sums and products are kept with their constant on the right and constants merged, so equal
// shifts compare equal however they were built.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/util/scanner.h"

namespace spmd {

// A tensor of the instruction that an expression belongs to: operand k or result k.
struct TensorRef {
  enum class Kind : uint8_t { kOperand, kResult };
  Kind kind = Kind::kOperand;
  int index = 0;
  friend bool operator==(TensorRef a, TensorRef b) {
    return a.kind == b.kind && a.index == b.index;
  }
};
inline TensorRef Operand(int k) { return {TensorRef::Kind::kOperand, k}; }
inline TensorRef Result(int k) { return {TensorRef::Kind::kResult, k}; }

// Immutable; copying shares the tree. Thread safety: immutable.
class Expr {
 public:
  enum class Op : uint8_t {
    kConst,   // value
    kStart,   // first global index of the tile of `tensor` along `dim`
    kSize,    // local size of the tile of `tensor` along `dim`
    kExtent,  // global size of `tensor` along `dim`
    kCoord,   // the device's coordinate along sub-axis `dim`
    kAdd,
    kSub,
    kMul,
    kFloorDiv,
    kCeilDiv,
    kMin,
    kMax
  };

  // What the variables stand for on one device.
  struct Env {
    std::function<int64_t(TensorRef, int dim)> start;
    std::function<int64_t(TensorRef, int dim)> size;
    std::function<int64_t(TensorRef, int dim)> extent;
    std::function<int64_t(int sub_axis)> coord;
  };

  Expr(int64_t value);  // NOLINT: integers are expressions
  static Expr Start(TensorRef tensor, int dim);
  static Expr Size(TensorRef tensor, int dim);
  static Expr Extent(TensorRef tensor, int dim);
  static Expr Coord(int sub_axis);
  // Folds constants. Requires: a constant divisor is positive.
  static Expr Binary(Op op, const Expr& a, const Expr& b);

  Op op() const;
  int64_t value() const;     // Requires: op() == kConst.
  TensorRef tensor() const;  // Requires: op() is kStart, kSize or kExtent.
  int dim() const;           // Requires: a variable. The sub-axis for kCoord.
  const Expr& lhs() const;
  const Expr& rhs() const;

  bool IsConst() const { return op() == Op::kConst; }
  // The value on the device that `env` describes. A quotient whose divisor is not positive is 0,
  // since the size of an empty tile may be the divisor.
  int64_t Evaluate(const Env& env) const;
  // Calls `visit` on every variable of the tree, left to right.
  void ForEachVariable(const std::function<void(const Expr&)>& visit) const;
  std::string ToString() const;
  // Errors: InvalidArgument with the offending text.
  static absl::StatusOr<Expr> Parse(absl::string_view text);
  static absl::StatusOr<Expr> Parse(Scanner& in);  // takes the longest expression that comes next

  friend bool operator==(const Expr& a, const Expr& b);
  friend bool operator!=(const Expr& a, const Expr& b) { return !(a == b); }
  size_t Hash() const;
  template <typename H>
  friend H AbslHashValue(H h, const Expr& e) {
    return H::combine(std::move(h), e.Hash());
  }

 private:
  struct Node;
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

inline Expr operator+(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kAdd, a, b); }
inline Expr operator-(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kSub, a, b); }
inline Expr operator*(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kMul, a, b); }
inline Expr FloorDiv(const Expr& a, const Expr& b) {
  return Expr::Binary(Expr::Op::kFloorDiv, a, b);
}
inline Expr CeilDiv(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kCeilDiv, a, b); }
inline Expr Min(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kMin, a, b); }
inline Expr Max(const Expr& a, const Expr& b) { return Expr::Binary(Expr::Op::kMax, a, b); }

}  // namespace spmd
