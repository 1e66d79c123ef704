// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/syntax.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/status.h"

namespace spmd::ir {
namespace {

bool IsDigit(char c) { return absl::ascii_isdigit(c); }
bool InName(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; }
bool InOpName(char c) { return InName(c) || c == ':'; }

// Parses one operand; `_` is an absent one.
absl::StatusOr<ValueId> ParseOperand(Scanner& in, const NameTable& names) {
  if (in.ConsumeWord("_")) return kNoValue;
  return names.Parse(in);
}

// Parses an operand group behind its '['.
absl::Status ParseGroup(Scanner& in, const NameTable& names, Arguments& arguments) {
  OperandGroup group{static_cast<int>(arguments.operands.size()), 0};
  if (!in.Consume("]")) {
    do {
      SPMD_ASSIGN_OR_RETURN(const ValueId operand, ParseOperand(in, names));
      arguments.operands.push_back(operand);
      ++group.size;
    } while (in.Consume(","));
    SPMD_RETURN_IF_ERROR(in.Expect("]"));
  }
  arguments.groups.push_back(group);
  return absl::OkStatus();
}

absl::Status ParseAttribute(Scanner& in, Attributes& attributes) {
  SPMD_ASSIGN_OR_RETURN(
      const absl::string_view name,
      in.Identifier("an operand (%x, _ or [%x, %y]) or an attribute (name=value)"));
  if (attributes.Find(name) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("attribute '", name, "' is given twice"));
  }
  SPMD_RETURN_IF_ERROR(in.Expect("="));
  SPMD_ASSIGN_OR_RETURN(Attr value, ParseAttr(in));
  attributes.Set(name, std::move(value));
  return absl::OkStatus();
}

// True if an operand comes next. A lone '_' is an absent operand; the name of an attribute may
// begin with one.
bool AtOperand(Scanner& in) {
  if (in.Peek() == '%' || in.Peek() == '[') return true;
  const size_t begin = in.position();
  const bool absent = in.ConsumeWord("_");
  in.Seek(begin);
  return absent;
}

}  // namespace

bool IsNumberName(absl::string_view name) {
  constexpr size_t kMaxDigits = 9;
  return !name.empty() && name.size() <= kMaxDigits && (name[0] != '0' || name.size() == 1) &&
         std::all_of(name.begin(), name.end(), IsDigit);
}

bool IsValueName(absl::string_view name) {
  if (IsNumberName(name)) return true;
  return IsIdentifier(name.substr(0, 1)) && std::all_of(name.begin(), name.end(), InName);
}

absl::StatusOr<absl::string_view> ParseValueName(Scanner& in) {
  if (!in.Consume("%")) return in.Error("a value like '%x'");
  const absl::string_view name = in.TakeWhile(InName);
  if (IsValueName(name)) return name;
  return absl::InvalidArgumentError(
      absl::StrCat("'%", name, "' is no value; after '%' comes an identifier or a number of at ",
                   "most nine digits"));
}

absl::StatusOr<absl::string_view> ParseOpName(Scanner& in) {
  in.SkipBlanks();
  const absl::string_view name = in.TakeWhile(InOpName);
  if (name.empty()) return in.Error("the name of an op, like aten::add.Tensor,");
  return name;
}

absl::Status NameTable::Define(absl::string_view name, int32_t id, int line) {
  const auto [it, inserted] = entries_.try_emplace(std::string(name), Entry{id, line});
  if (inserted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("value '%", name, "' is already defined on line ", it->second.line));
}

absl::StatusOr<int32_t> NameTable::Parse(Scanner& in) const {
  SPMD_ASSIGN_OR_RETURN(const absl::string_view name, ParseValueName(in));
  const auto it = entries_.find(std::string(name));
  if (it != entries_.end()) return it->second.id;
  return absl::InvalidArgumentError(
      absl::StrCat("value '%", name, "' is used before it is defined"));
}

std::string MeshToString(absl::string_view name, const Grid& grid) {
  return absl::StrCat("mesh @", name, " ", grid.ToString());
}

absl::StatusOr<NamedGrid> ParseMesh(Scanner& in) {
  NamedGrid named;
  SPMD_RETURN_IF_ERROR(in.Expect("@"));
  SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("the name of a mesh"));
  named.name = std::string(name);
  SPMD_ASSIGN_OR_RETURN(named.grid, Grid::Parse(in));
  return named;
}

absl::StatusOr<int> ParseMeshRef(Scanner& in, absl::Span<const std::string> names) {
  SPMD_RETURN_IF_ERROR(in.Expect("@"));
  SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("the name of a mesh"));
  for (size_t g = 0; g < names.size(); ++g) {
    if (name == names[g]) return static_cast<int>(g);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no mesh '@", name, "'"));
}

std::string ScalarToString(int slot, ScalarKind kind) {
  return absl::StrCat("scalar $", slot, ": ", ScalarKindName(kind));
}

absl::StatusOr<ScalarKind> ParseScalar(Scanner& in, int next_slot) {
  SPMD_RETURN_IF_ERROR(in.Expect("$"));
  SPMD_ASSIGN_OR_RETURN(const int64_t slot, in.Integer("the slot of a scalar"));
  if (slot != next_slot) {
    return absl::InvalidArgumentError(
        absl::StrCat("scalar $", slot, " is out of order; expected $", next_slot));
  }
  SPMD_RETURN_IF_ERROR(in.Expect(":"));
  for (ScalarKind kind :
       {ScalarKind::kBool, ScalarKind::kInt, ScalarKind::kFloat, ScalarKind::kComplex}) {
    if (in.ConsumeWord(ScalarKindName(kind))) return kind;
  }
  return in.Error("bool, int, float or complex");
}

std::string ArgumentsToString(absl::Span<const ValueId> operands,
                              absl::Span<const OperandGroup> groups, const Attributes& attributes,
                              const std::function<std::string(ValueId)>& name_of) {
  const auto append = [&](std::string* out, ValueId id) {
    if (id == kNoValue) {
      out->push_back('_');
    } else {
      absl::StrAppend(out, name_of(id));
    }
  };
  std::vector<std::string> parts;
  int next = 0;  // the first operand not yet written
  const auto write_singles_to = [&](int end) {
    for (; next < end; ++next) append(&parts.emplace_back(), operands[next]);
  };
  for (OperandGroup group : groups) {
    const int limit = static_cast<int>(operands.size());
    if (group.begin < next || group.size < 0 || group.begin > limit - group.size) {
      parts.push_back(absl::StrCat("[?", group.begin, "+", group.size, "]"));
      continue;
    }
    write_singles_to(group.begin);
    parts.push_back(absl::StrCat(
        "[", absl::StrJoin(operands.subspan(group.begin, group.size), ", ", append), "]"));
    next = group.begin + group.size;
  }
  write_singles_to(static_cast<int>(operands.size()));
  if (!attributes.empty()) parts.push_back(attributes.ToString());
  return absl::StrCat("(", absl::StrJoin(parts, ", "), ")");
}

absl::StatusOr<Arguments> ParseArguments(Scanner& in, const NameTable& names) {
  Arguments arguments;
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  if (in.Consume(")")) return arguments;
  do {
    if (!AtOperand(in)) {
      SPMD_RETURN_IF_ERROR(ParseAttribute(in, arguments.attributes));
    } else if (!arguments.attributes.empty()) {
      return in.Error("operands before attributes, not an operand");
    } else if (in.Consume("[")) {
      SPMD_RETURN_IF_ERROR(ParseGroup(in, names, arguments));
    } else {
      SPMD_ASSIGN_OR_RETURN(const ValueId operand, ParseOperand(in, names));
      arguments.operands.push_back(operand);
    }
  } while (in.Consume(","));
  SPMD_RETURN_IF_ERROR(in.Expect(")"));
  return arguments;
}

absl::StatusOr<int64_t> ParseInParentheses(Scanner& in) {
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  SPMD_ASSIGN_OR_RETURN(const int64_t value, in.Integer("an integer"));
  SPMD_RETURN_IF_ERROR(in.Expect(")"));
  return value;
}

}  // namespace spmd::ir
