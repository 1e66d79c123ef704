// SPDX-License-Identifier: Apache-2.0
// How a line of a table is written (csrc/rules/rule.h says what it means). Tables are constants:
//
//   constexpr auto kRows = Rows(
//       Einsum("aten::mm", "m k, k n -> m n").Each({0, 1}),
//       All(Elementwise("").Types(BoolTypes), {"aten::isnan", "aten::isinf"}));
//   static_assert(AreRowsOf(Family::kMatmul, kRows));
//
// so that the compiler sees whether an op has two rows (csrc/rules/families.h).
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// A few numbers of operands.
class OperandList {
 public:
  constexpr OperandList() = default;
  constexpr OperandList(std::initializer_list<int> operands) {
    for (int k : operands) operands_[size_++] = k;
  }
  constexpr const int* begin() const { return operands_.data(); }
  constexpr const int* end() const { return begin() + size_; }

 private:
  std::array<int, 4> operands_{};
  size_t size_ = 0;
};

struct Row : RuleFields {
  absl::string_view op = "";
  absl::string_view einsum = "";
  OperandList each;
  OperandList jointly;
  OperandList added;  // besides those that the text marks with "+"

  // These return the row with one field changed, so that it reads as a line.
  constexpr Row Named(absl::string_view v) const { return Set(&Row::op, v); }
  constexpr Row Each(OperandList v) const { return Set(&Row::each, v); }
  constexpr Row Jointly(OperandList v) const { return Set(&Row::jointly, v); }
  constexpr Row JointlyAll() const { return Set(&Row::jointly_all, true); }
  constexpr Row AddedOnce(OperandList v) const { return Set(&Row::added, v); }
  constexpr Row Monotone() const { return Set(&Row::monotone, true); }
  constexpr Row LinearIf(LinearIfFn v) const { return Set(&Row::linear_if, v); }
  constexpr Row Local(LocalFn v) const { return Set(&Row::local, v); }
  constexpr Row Types(TypesFn v) const { return Set(&Row::types, v); }
  constexpr Row Decomposes(DecomposeFn v) const { return Set(&Row::decompose, v); }
  constexpr Row DecomposesAlways(DecomposeFn v) const {
    return Decomposes(v).Set(&Row::decompose_always, true);
  }
  constexpr Row DecomposesBatch(DecomposeFn v) const { return Set(&Row::decompose_batch, v); }
  constexpr Row InRings(const RingForm& v) const { return Set(&Row::ring, &v); }
  constexpr Row Combines(CombineFn v) const { return Set(&Row::combine, v); }
  constexpr Row Random() const { return Set(&Row::random, true); }
  constexpr Row Flops(double per_point) const { return Set(&Row::flops_per_point, per_point); }
  template <typename T>
  constexpr Row With(T OpFacts::* fact, std::type_identity_t<T> value) const {
    Row row = *this;
    row.facts.*fact = value;
    return row;
  }
  constexpr Row CannotFail() const { return With(&OpFacts::fails, Failure::kNever); }
  constexpr Row FailsOnIndices(absl::string_view bound = "") const {
    return With(&OpFacts::fails, Failure::kOnIndices).With(&OpFacts::index_bound, bound);
  }

 private:
  template <typename Of, typename T>
  constexpr Row Set(T Of::* field, std::type_identity_t<T> value) const {
    Row row = *this;
    row.*field = value;
    return row;
  }
};

constexpr Row Einsum(absl::string_view op, absl::string_view text) {
  Row row;
  row.op = op;
  row.einsum = text;
  return row;
}

constexpr Row Computed(absl::string_view op, FactorsFn factors) {
  Row row;
  row.op = op;
  row.factors = factors;
  return row;
}

// Broadcasting over all operands. Its rows cannot fail unless they say so.
constexpr Row Elementwise(absl::string_view op) {
  Row row = Computed(op, BroadcastFactors).Types(PromotedTypes).CannotFail();
  row.elementwise = true;
  return row;
}

// A row like `prototype` for each op.
template <size_t n>
constexpr std::array<Row, n> All(const Row& prototype, const char* const (&ops)[n]) {
  std::array<Row, n> rows;
  for (size_t i = 0; i < n; ++i) rows[i] = prototype.Named(ops[i]);
  return rows;
}

template <typename T>
inline constexpr size_t kRowsIn = 1;
template <size_t n>
inline constexpr size_t kRowsIn<std::array<Row, n>> = n;

// A table of rows and of arrays of rows.
template <typename... Parts>
constexpr auto Rows(const Parts&... parts) {
  std::array<Row, (kRowsIn<Parts> + ... + 0)> rows;
  size_t next = 0;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_same_v<decltype(part), const Row&>) {
      rows[next++] = part;
    } else {
      for (const Row& row : part) rows[next++] = row;
    }
  };
  (append(parts), ...);
  return rows;
}

// The rows. None of them can fail.
template <size_t n>
constexpr std::array<Row, n> CannotFail(std::array<Row, n> rows) {
  for (Row& row : rows) row = row.CannotFail();
  return rows;
}

}  // namespace spmd::rules
