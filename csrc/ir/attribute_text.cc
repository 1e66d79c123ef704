// SPDX-License-Identifier: Apache-2.0
// The text form of one attribute value; see attributes.h.
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/attributes.h"
#include "csrc/util/scanner.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

std::string DoubleToString(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

struct Printer {
  std::string operator()(NoneAttr) const { return "none"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const { return DoubleToString(value); }
  std::string operator()(const std::complex<double>& value) const {
    return absl::StrCat("complex(", DoubleToString(value.real()), ",", DoubleToString(value.imag()),
                        ")");
  }
  std::string operator()(const std::string& value) const { return Quote(value); }
  std::string operator()(DType value) const { return std::string(DTypeName(value)); }
  std::string operator()(RuntimeScalar value) const { return absl::StrCat("$", value.slot); }
  std::string operator()(const Expr& value) const { return value.ToString(); }
  // An empty list of anything but integers is written with its element type.
  std::string operator()(const std::vector<int64_t>& list) const { return List(list, ""); }
  std::string operator()(const std::vector<double>& list) const { return List(list, "float"); }
  std::string operator()(const std::vector<bool>& list) const { return List(list, "bool"); }
  std::string operator()(const std::vector<Expr>& list) const { return List(list, ""); }

  template <typename T>
  std::string List(const std::vector<T>& list, const char* if_empty) const {
    if (list.empty()) return absl::StrCat(if_empty, "[]");
    std::string text;
    for (const T& item : list) absl::StrAppend(&text, text.empty() ? "[" : ",", (*this)(item));
    return text + "]";
  }
};

constexpr absl::string_view kWhat =
    "an attribute value: a number, true, false, none, a \"string\", an element type, a list [..], "
    "complex(re,im), a run-time scalar $0 or an expression";

bool IsDigit(char c) { return absl::ascii_isdigit(c); }
bool InWord(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Skips digits [ "." digits ] [ "e" sign digits ] behind an optional '-', or "inf" or "nan".
// Returns whether it is a float; nullopt when no number comes next.
std::optional<bool> SkipNumber(Scanner& in) {
  in.Consume("-");
  if (in.ConsumeWord("inf") || in.ConsumeWord("nan")) return true;
  if (in.rest().empty() || !IsDigit(in.rest()[0])) return std::nullopt;
  in.TakeWhile(IsDigit);
  bool is_float = false;
  if (!in.rest().empty() && in.rest()[0] == '.') {
    is_float = true;
    in.Consume(".");
    in.TakeWhile(IsDigit);
  }
  if (!in.rest().empty() && in.rest()[0] == 'e') {
    is_float = true;
    in.Consume("e");
    if (!in.Consume("-")) in.Consume("+");
    in.TakeWhile(IsDigit);
  }
  return is_float;
}

absl::StatusOr<double> ParseDouble(Scanner& in) {
  in.SkipBlanks();
  const size_t begin = in.position();
  const absl::string_view text = in.rest();
  const bool is_number = SkipNumber(in).has_value();
  double value = 0;
  if (is_number && absl::SimpleAtod(text.substr(0, in.position() - begin), &value)) return value;
  in.Seek(begin);
  return in.Error("a number");
}

absl::StatusOr<Attr> ParseExpr(Scanner& in) {
  SPMD_ASSIGN_OR_RETURN(Expr expr, Expr::Parse(in));
  if (expr.IsConst()) return expr.value();
  return expr;
}

// An integer, a float, or an expression that starts with an integer.
absl::StatusOr<Attr> ParseNumber(Scanner& in) {
  const size_t begin = in.position();
  const std::optional<bool> is_float = SkipNumber(in);
  const char next = in.Peek();
  in.Seek(begin);
  if (!is_float.has_value()) return in.Error(kWhat);
  if (*is_float) return ParseDouble(in);
  if (next == '+' || next == '-' || next == '*') return ParseExpr(in);
  return in.Integer("an integer of 64 bits");
}

absl::StatusOr<Attr> ParseComplex(Scanner& in) {
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  SPMD_ASSIGN_OR_RETURN(const double real, ParseDouble(in));
  SPMD_RETURN_IF_ERROR(in.Expect(","));
  SPMD_ASSIGN_OR_RETURN(const double imaginary, ParseDouble(in));
  SPMD_RETURN_IF_ERROR(in.Expect(")"));
  return std::complex<double>(real, imaginary);
}

absl::StatusOr<Attr> ParseSlot(Scanner& in) {
  const size_t begin = in.position();
  SPMD_ASSIGN_OR_RETURN(const int64_t slot, in.Integer("the slot of a run-time scalar"));
  if (slot >= 0 && slot <= std::numeric_limits<int>::max()) {
    return RuntimeScalar{static_cast<int>(slot)};
  }
  in.Seek(begin);
  return in.Error("the slot of a run-time scalar");
}

absl::StatusOr<Attr> ParseWord(Scanner& in) {
  const size_t begin = in.position();
  const absl::string_view word = in.TakeWhile(InWord);
  if (word == "none") return NoneAttr();
  if (word == "true") return true;
  if (word == "false") return false;
  if (word == "inf" || word == "nan") {
    in.Seek(begin);
    return ParseDouble(in);
  }
  if (word == "complex") return ParseComplex(in);
  if (word == "float" && in.Consume("[]")) return std::vector<double>();
  if (word == "bool" && in.Consume("[]")) return std::vector<bool>();
  if (absl::StatusOr<DType> dtype = ParseDType(word); dtype.ok()) return *dtype;
  const bool is_call = in.Peek() == '(';
  in.Seek(begin);
  if (!is_call) return in.Error(kWhat);
  return ParseExpr(in);
}

template <typename T>
bool AllAre(const std::vector<Attr>& items) {
  for (const Attr& item : items) {
    if (!std::holds_alternative<T>(item)) return false;
  }
  return true;
}

template <typename T>
std::vector<T> ListOf(const std::vector<Attr>& items) {
  std::vector<T> list;
  for (const Attr& item : items) list.push_back(std::get<T>(item));
  return list;
}

// A list of expressions and integers as expressions; nullopt when it has anything else.
std::optional<std::vector<Expr>> ExprsOf(const std::vector<Attr>& items) {
  std::vector<Expr> list;
  for (const Attr& item : items) {
    if (const auto* value = std::get_if<int64_t>(&item)) {
      list.push_back(*value);
    } else if (const auto* expr = std::get_if<Expr>(&item)) {
      list.push_back(*expr);
    } else {
      return std::nullopt;
    }
  }
  return list;
}

// Parses a list behind its '['.
absl::StatusOr<Attr> ParseList(Scanner& in) {
  const size_t begin = in.position();
  if (in.Consume("]")) return std::vector<int64_t>();
  std::vector<Attr> items;
  do {
    // Lists do not nest, which also bounds the recursion.
    if (in.Peek() == '[') return in.Error("a number, a bool or an expression");
    SPMD_ASSIGN_OR_RETURN(Attr item, ParseAttr(in));
    items.push_back(std::move(item));
  } while (in.Consume(","));
  SPMD_RETURN_IF_ERROR(in.Expect("]"));
  if (AllAre<int64_t>(items)) return ListOf<int64_t>(items);
  if (AllAre<double>(items)) return ListOf<double>(items);
  if (AllAre<bool>(items)) return ListOf<bool>(items);
  if (auto exprs = ExprsOf(items)) return *std::move(exprs);
  in.Seek(begin);
  return in.Error("integers, floats, bools or expressions, all of one kind,");
}

}  // namespace

std::string AttrToString(const Attr& attr) { return std::visit(Printer(), attr); }

absl::StatusOr<Attr> ParseAttr(Scanner& in) {
  const char next = in.Peek();
  if (next == '"') return in.Quoted("a string");
  if (in.Consume("$")) return ParseSlot(in);
  if (in.Consume("[")) return ParseList(in);
  if (next == '(') return ParseExpr(in);
  if (IsDigit(next) || next == '-') return ParseNumber(in);
  if (InWord(next)) return ParseWord(in);
  return in.Error(kWhat);
}

absl::StatusOr<Attr> ParseAttr(absl::string_view text) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(Attr attr, ParseAttr(in));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return attr;
}

}  // namespace spmd
