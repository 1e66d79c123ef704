// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/signature.h"

#include <algorithm>
#include <complex>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "csrc/rules/families.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

absl::Status NoSchema(absl::string_view schema) {
  return absl::InvalidArgumentError(absl::StrCat("'", schema, "' is no schema of an op"));
}

// Splits `list` at the commas that are outside brackets and quotes.
std::vector<absl::string_view> SplitList(absl::string_view list) {
  std::vector<absl::string_view> items;
  size_t begin = 0;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '"') quoted = !quoted;
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c != ',' || quoted || (depth != 0 && i < list.size())) continue;
    const absl::string_view item = absl::StripAsciiWhitespace(list.substr(begin, i - begin));
    if (!item.empty()) items.push_back(item);
    begin = i + 1;
  }
  return items;
}

Parameter::Type TypeOf(absl::string_view name) {
  using Type = Parameter::Type;
  // The alias annotation of "Tensor(a!)" does not matter here, since graphs are functional.
  if (name == "Tensor" || absl::StartsWith(name, "Tensor(")) return Type::kTensor;
  if (name == "int" || name == "SymInt") return Type::kInt;
  if (name == "float") return Type::kFloat;
  if (name == "bool") return Type::kBool;
  if (name == "Scalar") return Type::kScalar;
  if (name == "str") return Type::kString;
  if (name == "ScalarType") return Type::kDType;
  return Type::kOther;
}

// Parses "SymInt[2]? size=None".
absl::StatusOr<Parameter> ParseParameter(absl::string_view text) {
  Parameter p;
  const size_t equals = text.find('=');
  p.has_default = equals != absl::string_view::npos;
  text = text.substr(0, equals);
  const size_t blank = text.rfind(' ');
  if (blank == absl::string_view::npos) return NoSchema(text);
  p.name = std::string(text.substr(blank + 1));
  absl::string_view type = text.substr(0, blank);
  p.text = std::string(type);
  p.optional = absl::ConsumeSuffix(&type, "?");
  if (absl::ConsumeSuffix(&type, "]")) {
    const size_t open = type.rfind('[');
    if (open == absl::string_view::npos) return NoSchema(text);
    p.is_list = true;
    const absl::string_view size = type.substr(open + 1);
    if (!size.empty() && !absl::SimpleAtoi(size, &p.size)) return NoSchema(text);
    type = type.substr(0, open);
    p.items_optional = absl::ConsumeSuffix(&type, "?");
  }
  p.type = TypeOf(type);
  return p;
}

using Signatures = absl::flat_hash_map<std::string, Signature>;

const Signatures& All() {
  static const Signatures* const table = [] {
    auto* all = new Signatures;
    for (const Schema& schema : kSchemas) {
      absl::StatusOr<Signature> signature = Signature::Parse(schema.text);
      SPMD_CHECK(signature.ok(), signature.status().ToString());
      (*all)[std::string(schema.op())] = *std::move(signature);
    }
    return all;
  }();
  return *table;
}

class SignatureCheck {
 public:
  SignatureCheck(const Signature& signature, const OpCall& call)
      : signature_(signature), call_(call) {}

  absl::Status Run() {
    SPMD_RETURN_IF_ERROR(Operands());
    SPMD_RETURN_IF_ERROR(Attributes());
    return Results();
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(call_.ToString(), ": ", parts...));
  }

  absl::Status Operands() {
    const int count = static_cast<int>(call_.operands.size());
    for (const Parameter& p : signature_.parameters) {
      if (p.type != Parameter::Type::kTensor) continue;
      if (p.is_list) {
        SPMD_RETURN_IF_ERROR(OperandList(p));
        continue;
      }
      const bool in_group = group_ < call_.groups.size() && call_.groups[group_].begin == next_ &&
                            call_.groups[group_].size > 0;
      if (in_group) return Error("'", p.name, "' is one tensor, not a list");
      if (!call_.has(next_) && !p.optional)
        return Error("operand ", next_, " ('", p.name, "') is absent");
      if (next_ < count) ++next_;
    }
    if (next_ < count || group_ < call_.groups.size()) {
      return Error("it takes ", next_, " operands, not ", count);
    }
    return absl::OkStatus();
  }

  absl::Status OperandList(const Parameter& p) {
    const bool found = group_ < call_.groups.size() && call_.groups[group_].begin == next_;
    if (!found) {
      if (p.optional || next_ == static_cast<int>(call_.operands.size())) return absl::OkStatus();
      return Error("operand ", next_, " ('", p.name, "') is no list [%a, %b]");
    }
    for (int k = 0; k < call_.groups[group_].size; ++k, ++next_) {
      if (!call_.has(next_) && !p.items_optional) {
        return Error("item ", k, " of '", p.name, "' is absent");
      }
    }
    ++group_;
    return absl::OkStatus();
  }

  const Parameter* Find(absl::string_view name) const {
    for (const Parameter& p : signature_.parameters) {
      if (p.name == name && p.type != Parameter::Type::kTensor) return &p;
    }
    return nullptr;
  }

  absl::Status Attributes() const {
    for (const auto& [name, value] : call_.attrs()) {
      const Parameter* p = Find(name);
      if (p == nullptr) return Error("it has no argument '", name, "'");
      if (!Fits(*p, value)) {
        return Error("argument ", name, "=", AttrToString(value), " should be ", p->text);
      }
    }
    for (const Parameter& p : signature_.parameters) {
      using Type = Parameter::Type;
      if (p.type == Type::kTensor || p.type == Type::kOther || p.has_default || p.optional)
        continue;
      if (call_.attrs().Find(p.name) == nullptr) {
        return Error("argument '", p.name, "' (", p.text, ") is missing");
      }
    }
    return absl::OkStatus();
  }

  static bool Fits(const Parameter& p, const Attr& value) {
    if (std::holds_alternative<NoneAttr>(value)) {
      return p.optional || p.type == Parameter::Type::kOther;
    }
    return p.is_list ? IsList(p, value) : IsOne(p.type, value);
  }

  static bool IsOne(Parameter::Type type, const Attr& value) {
    using Type = Parameter::Type;
    const bool runtime = std::holds_alternative<RuntimeScalar>(value);
    const bool is_int = std::holds_alternative<int64_t>(value);
    const bool is_bool = std::holds_alternative<bool>(value);
    const bool is_float = std::holds_alternative<double>(value);
    switch (type) {
      case Type::kInt:
        return is_int || runtime;
      case Type::kFloat:
        return is_float || is_int || runtime;
      case Type::kBool:
        return is_bool || runtime;
      case Type::kScalar:
        return is_float || is_int || is_bool || runtime ||
               std::holds_alternative<std::complex<double>>(value);
      case Type::kString:
        return std::holds_alternative<std::string>(value);
      case Type::kDType:
        return std::holds_alternative<DType>(value);
      case Type::kTensor:
      case Type::kOther:
        break;
    }
    return false;
  }

  // A list of a known size may be given as one item, which then applies to all, or be empty where
  // another argument implies it (the default stride is the kernel's size). A declared size of 1
  // only means that a single item need not be a list.
  static bool IsSize(const Parameter& p, size_t size) {
    return p.size <= 1 || size == static_cast<size_t>(p.size) ||
           (p.type == Parameter::Type::kInt && size <= 1);
  }

  static bool IsList(const Parameter& p, const Attr& value) {
    using Type = Parameter::Type;
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      const bool may_hold =
          p.type == Type::kInt || p.type == Type::kFloat || p.type == Type::kScalar;
      return (may_hold || ints->empty()) && IsSize(p, ints->size());
    }
    if (const auto* floats = std::get_if<std::vector<double>>(&value)) {
      return (p.type == Type::kFloat || p.type == Type::kScalar) && IsSize(p, floats->size());
    }
    if (const auto* bools = std::get_if<std::vector<bool>>(&value)) {
      return p.type == Type::kBool && IsSize(p, bools->size());
    }
    return false;
  }

  // A node must have as many results as the op, or as its output mask asks for.
  absl::Status Results() const {
    const int count = static_cast<int>(call_.results.size());
    if (signature_.results_are_lists || count == signature_.results) return absl::OkStatus();
    const Attr* mask = call_.attrs().Find("output_mask");
    const auto* asked = mask == nullptr ? nullptr : std::get_if<std::vector<bool>>(mask);
    if (asked != nullptr && count == std::count(asked->begin(), asked->end(), true)) {
      return absl::OkStatus();
    }
    return Error("it has ", signature_.results, " results, not ", count);
  }

  const Signature& signature_;
  const OpCall& call_;
  int next_ = 0;      // the next operand to check
  size_t group_ = 0;  // the first operand group that begins at next_ or later
};

}  // namespace

absl::StatusOr<Signature> Signature::Parse(absl::string_view schema) {
  const size_t open = schema.find('('), arrow = schema.rfind(" -> ");
  if (open == absl::string_view::npos || arrow == absl::string_view::npos || arrow < open + 2) {
    return NoSchema(schema);
  }
  Signature signature;
  for (const absl::string_view item : SplitList(schema.substr(open + 1, arrow - open - 2))) {
    if (item == "*") continue;
    SPMD_ASSIGN_OR_RETURN(Parameter parameter, ParseParameter(item));
    signature.parameters.push_back(std::move(parameter));
  }
  absl::string_view returned = schema.substr(arrow + 4);
  if (absl::ConsumePrefix(&returned, "(")) absl::ConsumeSuffix(&returned, ")");
  for (const absl::string_view item : SplitList(returned)) {
    ++signature.results;
    signature.results_are_lists |= item.find("[]") != absl::string_view::npos;
  }
  return signature;
}

const Signature* FindSignature(absl::string_view op) {
  const auto it = All().find(std::string(op));
  return it == All().end() ? nullptr : &it->second;
}

absl::Status CheckSignature(const Signature& signature, const OpCall& call) {
  return SignatureCheck(signature, call).Run();
}

}  // namespace spmd::rules
