// SPDX-License-Identifier: Apache-2.0
// The non-tensor arguments of an op, by schema name.
//
// Text: dim=1, eps=1e-05, approximate="tanh", dtype=f32, size=[2,3], p=none, value=$0, flag=true.
// `$k` is a run-time scalar: its kind is part of the program's key, its value is passed at each
// run. Floats always print with '.', 'e', "inf" or "nan", so that 1 and 1.0 differ. Further forms
// are complex(1.0,-2.5), and float[] and bool[] for empty lists of those.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/type.h"
#include "csrc/util/expr.h"
#include "csrc/util/scanner.h"

namespace spmd {

struct NoneAttr {
  friend bool operator==(NoneAttr, NoneAttr) { return true; }
  template <typename H>
  friend H AbslHashValue(H h, NoneAttr) {
    return h;
  }
};
// Slot k of the run-time scalars of the graph or program.
struct RuntimeScalar {
  int slot = 0;
  friend bool operator==(RuntimeScalar a, RuntimeScalar b) { return a.slot == b.slot; }
  template <typename H>
  friend H AbslHashValue(H h, RuntimeScalar s) {
    return H::combine(std::move(h), s.slot);
  }
};

// Expressions occur in programs only; the verifier of graphs rejects them.
using Attr = std::variant<NoneAttr, bool, int64_t, double, std::complex<double>, std::string, DType,
                          RuntimeScalar, Expr, std::vector<int64_t>, std::vector<double>,
                          std::vector<bool>, std::vector<Expr>>;

std::string AttrToString(const Attr& attr);
// True if `a` and `b` are equal in every bit: 0.0 differs from -0.0, and a NaN equals itself.
bool SameAttr(const Attr& a, const Attr& b);
absl::StatusOr<Attr> ParseAttr(absl::string_view text);
absl::StatusOr<Attr> ParseAttr(Scanner& in);  // leaves the text that follows

// A short list in insertion order, which is the op's schema order. Names are unique. A constant
// expression is stored as an integer, and a list of constant expressions as a list of integers.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attr>> items);

  const Attr* Find(absl::string_view name) const;  // null when absent
  // Typed access. `Get…Or` returns the default when the attribute is absent or none; the others
  // SPMD_REQUIRE that it exists. All SPMD_REQUIRE its type; an integer may be read as a double.
  int64_t GetInt(absl::string_view name) const;
  int64_t GetIntOr(absl::string_view name, int64_t fallback) const;
  double GetDoubleOr(absl::string_view name, double fallback) const;
  bool GetBoolOr(absl::string_view name, bool fallback) const;
  std::string GetStringOr(absl::string_view name, absl::string_view fallback) const;
  const std::vector<int64_t>& GetInts(absl::string_view name) const;
  std::vector<int64_t> GetIntsOr(absl::string_view name, std::vector<int64_t> fallback) const;
  bool IsNone(absl::string_view name) const;  // absent or none

  void Set(absl::string_view name, Attr value);  // replaces or appends
  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  std::string ToString() const;                                      // "dim=1, keepdim=false"
  friend bool operator==(const Attributes& a, const Attributes& b);  // compares with SameAttr
  template <typename H>
  friend H AbslHashValue(H h, const Attributes& a) {
    for (const auto& [name, attr] : a.items_) {
      h = H::combine(std::move(h), name, attr.index());
      std::visit(
          [&h](const auto& v) {
            if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::complex<double>>) {
              h = H::combine(std::move(h), v.real(), v.imag());
            } else {
              h = H::combine(std::move(h), v);
            }
          },
          attr);
    }
    return h;
  }

 private:
  std::vector<std::pair<std::string, Attr>> items_;
};

}  // namespace spmd
