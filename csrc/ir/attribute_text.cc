// SPDX-License-Identifier: Apache-2.0
// The text form of one attribute value; see attributes.h.
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "csrc/ir/attributes.h"
#include "csrc/ir/cursor.h"
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
    return absl::StrCat("complex(", DoubleToString(value.real()), ",",
                        DoubleToString(value.imag()), ")");
  }
  std::string operator()(const std::string& value) const {
    return absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\"");
  }
  std::string operator()(DType value) const { return std::string(DTypeName(value)); }
  std::string operator()(RuntimeScalar value) const { return absl::StrCat("$", value.slot); }
  std::string operator()(const Expr& value) const { return value.ToString(); }
  // An empty list of anything but integers says what it is a list of.
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

absl::Status NoAttribute(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no attribute value; expected a number, true, false, none, a ",
                   "\"string\", an element type, a list [..], complex(re,im), a run-time scalar $0 ",
                   "or an expression"));
}

absl::StatusOr<double> ParseFloat(absl::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) return NoAttribute(text);
  return value;
}

bool LooksLikeFloat(absl::string_view text) {
  if (text == "inf" || text == "-inf" || text == "nan") return true;
  const absl::string_view digits = absl::StripPrefix(text, "-");
  return !digits.empty() && (absl::ascii_isdigit(digits[0]) || digits[0] == '.') &&
         text.find_first_not_of("0123456789.eE+-") == absl::string_view::npos &&
         text.find_first_of(".eE") != absl::string_view::npos;
}

// The items of a list: text between commas outside brackets.
absl::StatusOr<std::vector<absl::string_view>> Items(absl::string_view inside) {
  std::vector<absl::string_view> items;
  ir::Cursor cursor(ir::Line{1, inside});
  do {
    absl::StatusOr<absl::string_view> item = cursor.Until(",");
    if (!item.ok()) return NoAttribute(absl::StrCat("[", inside, "]"));
    items.push_back(*item);
  } while (cursor.Consume(","));
  return items;
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

// Integers among expressions are expressions.
absl::StatusOr<std::vector<Expr>> ExprsOf(const std::vector<Attr>& items, absl::string_view text) {
  std::vector<Expr> list;
  for (const Attr& item : items) {
    if (const auto* value = std::get_if<int64_t>(&item)) {
      list.push_back(*value);
    } else if (const auto* expr = std::get_if<Expr>(&item)) {
      list.push_back(*expr);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("list ", text, " mixes kinds; expected integers, floats or bools only"));
    }
  }
  return list;
}

absl::StatusOr<Attr> ParseList(absl::string_view text) {
  const absl::string_view inside = absl::StripAsciiWhitespace(text.substr(1, text.size() - 2));
  if (inside.empty()) return std::vector<int64_t>();
  SPMD_ASSIGN_OR_RETURN(const std::vector<absl::string_view> pieces, Items(inside));
  std::vector<Attr> items;
  for (absl::string_view piece : pieces) {
    // Lists do not nest, which also bounds the recursion.
    if (absl::StartsWith(piece, "[")) return NoAttribute(text);
    SPMD_ASSIGN_OR_RETURN(Attr item, ParseAttr(piece));
    items.push_back(std::move(item));
  }
  if (AllAre<int64_t>(items)) return ListOf<int64_t>(items);
  if (AllAre<double>(items)) return ListOf<double>(items);
  if (AllAre<bool>(items)) return ListOf<bool>(items);
  return ExprsOf(items, text);
}

absl::StatusOr<Attr> ParseComplex(absl::string_view text) {
  absl::string_view inside = text;
  if (!absl::ConsumePrefix(&inside, "complex(") || !absl::ConsumeSuffix(&inside, ")")) {
    return NoAttribute(text);
  }
  const size_t comma = inside.find(',');
  if (comma == absl::string_view::npos) return NoAttribute(text);
  SPMD_ASSIGN_OR_RETURN(const double real, ParseFloat(inside.substr(0, comma)));
  SPMD_ASSIGN_OR_RETURN(const double imaginary, ParseFloat(inside.substr(comma + 1)));
  return std::complex<double>(real, imaginary);
}

absl::StatusOr<Attr> ParseSlot(absl::string_view text) {
  int slot = 0;
  if (!absl::SimpleAtoi(text.substr(1), &slot) || slot < 0) return NoAttribute(text);
  return RuntimeScalar{slot};
}

absl::StatusOr<Attr> ParseQuoted(absl::string_view text) {
  ir::Cursor cursor(ir::Line{1, text});
  absl::StatusOr<std::string> value = cursor.QuotedString();
  if (!value.ok() || !cursor.AtEnd()) return NoAttribute(text);
  return *std::move(value);
}

}  // namespace

std::string AttrToString(const Attr& attr) { return std::visit(Printer(), attr); }

absl::StatusOr<Attr> ParseAttr(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return NoAttribute(text);
  if (text == "none") return NoneAttr();
  if (text == "true") return true;
  if (text == "false") return false;
  if (text == "float[]") return std::vector<double>();
  if (text == "bool[]") return std::vector<bool>();
  if (text[0] == '"') return ParseQuoted(text);
  if (text[0] == '$') return ParseSlot(text);
  if (text[0] == '[' && text.back() == ']') return ParseList(text);
  if (absl::StartsWith(text, "complex(")) return ParseComplex(text);
  int64_t integer = 0;
  if (absl::SimpleAtoi(text, &integer)) return integer;
  if (LooksLikeFloat(text)) {
    SPMD_ASSIGN_OR_RETURN(const double value, ParseFloat(text));
    return value;
  }
  if (absl::StatusOr<DType> dtype = ParseDType(text); dtype.ok()) return *dtype;
  absl::StatusOr<Expr> expr = Expr::Parse(text);
  if (!expr.ok()) return NoAttribute(text);
  if (expr->IsConst()) return expr->value();
  return *std::move(expr);
}

}  // namespace spmd
