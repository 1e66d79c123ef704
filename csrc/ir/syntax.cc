// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/syntax.h"

#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/mesh/mesh.h"
#include "csrc/util/status.h"

namespace spmd::ir {
namespace {

constexpr int64_t kMaxDevices = int64_t{1} << 20;

struct Axes {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  int64_t devices = 1;
};

// "[data=2, model=4]".
absl::StatusOr<Axes> ParseMeshAxes(Cursor& cursor) {
  Axes axes;
  SPMD_RETURN_IF_ERROR(cursor.Expect("["));
  if (cursor.Consume("]")) return axes;
  do {
    SPMD_ASSIGN_OR_RETURN(std::string name, cursor.Identifier("the name of an axis"));
    SPMD_RETURN_IF_ERROR(cursor.Expect("="));
    SPMD_ASSIGN_OR_RETURN(const int64_t size, cursor.Integer("the size of an axis"));
    if (size < 1 || size > kMaxDevices / axes.devices) {
      return cursor.Error(absl::StrCat("axis '", name, "' of size ", size,
                                       ": sizes are at least 1, and a mesh has at most 2^20 ",
                                       "devices"));
    }
    axes.devices *= size;
    axes.names.push_back(std::move(name));
    axes.sizes.push_back(size);
  } while (cursor.Consume(","));
  SPMD_RETURN_IF_ERROR(cursor.Expect("]"));
  return axes;
}

absl::StatusOr<std::vector<int64_t>> ParseDevices(Cursor& cursor, int64_t count) {
  std::vector<int64_t> ids;
  if (!cursor.ConsumeWord("devices")) {
    ids.resize(count);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  SPMD_RETURN_IF_ERROR(cursor.Expect("="));
  SPMD_RETURN_IF_ERROR(cursor.Expect("["));
  do {
    SPMD_ASSIGN_OR_RETURN(const int64_t id, cursor.Integer("the number of a device"));
    ids.push_back(id);
  } while (cursor.Consume(","));
  SPMD_RETURN_IF_ERROR(cursor.Expect("]"));
  return ids;
}

// One operand, with `_` for an absent one.
absl::StatusOr<ValueId> ParseOperand(Cursor& cursor, const NameTable& names) {
  if (cursor.ConsumeWord("_")) return kNoValue;
  return names.Read(cursor);
}

absl::Status ParseGroup(Cursor& cursor, const NameTable& names, Arguments& arguments) {
  OperandGroup group{static_cast<int>(arguments.operands.size()), 0};
  if (!cursor.Consume("]")) {
    do {
      SPMD_ASSIGN_OR_RETURN(const ValueId operand, ParseOperand(cursor, names));
      arguments.operands.push_back(operand);
      ++group.size;
    } while (cursor.Consume(","));
    SPMD_RETURN_IF_ERROR(cursor.Expect("]"));
  }
  arguments.groups.push_back(group);
  return absl::OkStatus();
}

absl::Status ParseAttribute(Cursor& cursor, Attributes& attributes) {
  SPMD_ASSIGN_OR_RETURN(const std::string name, cursor.Identifier("an operand or an attribute"));
  SPMD_RETURN_IF_ERROR(cursor.Expect("="));
  if (attributes.Find(name) != nullptr) {
    return cursor.Error(absl::StrCat("attribute '", name, "' is given twice"));
  }
  SPMD_ASSIGN_OR_RETURN(const absl::string_view text, cursor.Until(",)"));
  absl::StatusOr<Attr> value = ParseAttr(text);
  if (!value.ok()) {
    return cursor.Error(absl::StrCat("attribute '", name, "': ", value.status().message()));
  }
  attributes.Set(name, *std::move(value));
  return absl::OkStatus();
}

absl::string_view Span(absl::string_view from, absl::string_view rest) {
  return from.substr(0, from.size() - rest.size());
}

}  // namespace

absl::Status NameTable::Define(const Cursor& at, absl::string_view name, int32_t id) {
  const auto [it, inserted] = entries_.try_emplace(std::string(name), Entry{id, at.line()});
  if (inserted) return absl::OkStatus();
  return at.Error(
      absl::StrCat("value '%", name, "' is already defined on line ", it->second.line));
}

absl::StatusOr<int32_t> NameTable::Read(Cursor& cursor) const {
  SPMD_ASSIGN_OR_RETURN(const std::string name, cursor.ValueName());
  const auto it = entries_.find(name);
  if (it != entries_.end()) return it->second.id;
  return cursor.Error(absl::StrCat("value '%", name, "' is used before it is defined"));
}

std::string MeshToString(absl::string_view name, const Grid& grid) {
  return absl::StrCat("mesh @", name, " ", grid.ToString());
}

absl::StatusOr<NamedGrid> ParseMesh(Cursor& cursor) {
  NamedGrid named;
  SPMD_RETURN_IF_ERROR(cursor.Expect("@"));
  SPMD_ASSIGN_OR_RETURN(named.name, cursor.Identifier("the name of a mesh"));
  SPMD_ASSIGN_OR_RETURN(Axes axes, ParseMeshAxes(cursor));
  SPMD_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseDevices(cursor, axes.devices));
  SPMD_RETURN_IF_ERROR(cursor.ExpectEnd());
  absl::StatusOr<Mesh> mesh =
      Mesh::Create(std::move(ids), std::move(axes.sizes), std::move(axes.names));
  if (!mesh.ok()) return cursor.Locate(mesh.status());
  named.grid = Grid::Of(*mesh);
  return named;
}

std::string ScalarToString(int slot, ScalarKind kind) {
  return absl::StrCat("scalar $", slot, ": ", ScalarKindName(kind));
}

absl::StatusOr<ScalarKind> ParseScalar(Cursor& cursor, int next_slot) {
  SPMD_RETURN_IF_ERROR(cursor.Expect("$"));
  SPMD_ASSIGN_OR_RETURN(const int64_t slot, cursor.Integer("the slot of a scalar"));
  if (slot != next_slot) {
    return cursor.Error(absl::StrCat("scalar $", slot, " is out of order; expected $", next_slot));
  }
  SPMD_RETURN_IF_ERROR(cursor.Expect(":"));
  for (ScalarKind kind :
       {ScalarKind::kBool, ScalarKind::kInt, ScalarKind::kFloat, ScalarKind::kComplex}) {
    if (!cursor.ConsumeWord(ScalarKindName(kind))) continue;
    SPMD_RETURN_IF_ERROR(cursor.ExpectEnd());
    return kind;
  }
  return cursor.Expected("bool, int, float or complex");
}

absl::StatusOr<TensorType> ParseType(Cursor& cursor) {
  absl::StatusOr<std::string> dtype = cursor.Identifier("a type like f32[32,128]");
  if (!dtype.ok()) return dtype.status();
  if (!cursor.At("[")) return cursor.Expected(absl::StrCat("'[' after '", *dtype, "'"));
  SPMD_ASSIGN_OR_RETURN(const absl::string_view dims, cursor.Group());
  absl::StatusOr<TensorType> type = TensorType::Parse(absl::StrCat(*dtype, dims));
  return type.ok() ? type : cursor.Locate(type.status());
}

absl::StatusOr<Sharding> ParseSharding(Cursor& cursor, const Grid& grid) {
  cursor.AtEnd();  // to the first character
  const absl::string_view from = cursor.rest();
  absl::string_view text;
  if (cursor.At("{")) {
    Cursor ahead = cursor;
    do {
      SPMD_RETURN_IF_ERROR(ahead.Group().status());
      cursor = ahead;
    } while (ahead.Consume(",") && ahead.At("{"));
    text = Span(from, cursor.rest());
  }
  if (cursor.ConsumeWord("unreduced")) {
    for (const char* open : {"(", "{"}) {
      if (!cursor.At(open)) return cursor.Expected(absl::StrCat("'", open, "'"));
      SPMD_RETURN_IF_ERROR(cursor.Group().status());
    }
    text = Span(from, cursor.rest());
  }
  absl::StatusOr<Sharding> sharding = Sharding::Parse(text, grid);
  return sharding.ok() ? sharding : cursor.Locate(sharding.status());
}

std::string ArgumentsToString(absl::Span<const ValueId> operands,
                              absl::Span<const OperandGroup> groups, const Attributes& attributes,
                              const std::function<absl::string_view(ValueId)>& name_of) {
  const auto text_of = [&](ValueId id) {
    return id == kNoValue ? std::string("_") : absl::StrCat("%", name_of(id));
  };
  std::vector<std::string> parts;
  const int count = static_cast<int>(operands.size());
  auto group = groups.begin();
  for (int i = 0; i < count || group != groups.end();) {
    if (group != groups.end() && group->begin <= i) {
      std::vector<std::string> items;
      for (int end = std::min(group->begin + group->size, count); i < end; ++i) {
        items.push_back(text_of(operands[i]));
      }
      parts.push_back(absl::StrCat("[", absl::StrJoin(items, ", "), "]"));
      ++group;
    } else if (i < count) {
      parts.push_back(text_of(operands[i++]));
    } else {
      break;  // a group beyond the operands: the verifier's business
    }
  }
  if (!attributes.empty()) parts.push_back(attributes.ToString());
  return absl::StrCat("(", absl::StrJoin(parts, ", "), ")");
}

absl::StatusOr<Arguments> ParseArguments(Cursor& cursor, const NameTable& names) {
  Arguments arguments;
  SPMD_RETURN_IF_ERROR(cursor.Expect("("));
  if (cursor.Consume(")")) return arguments;
  bool in_attributes = false;
  do {
    // An attribute's name may start with '_', so a lone '_' is told from it by what follows.
    Cursor ahead = cursor;
    const bool is_operand = cursor.At("%") || cursor.At("[") || ahead.ConsumeWord("_");
    if (is_operand && in_attributes) return cursor.Error("operands come before attributes");
    if (!is_operand) {
      in_attributes = true;
      SPMD_RETURN_IF_ERROR(ParseAttribute(cursor, arguments.attributes));
    } else if (cursor.Consume("[")) {
      SPMD_RETURN_IF_ERROR(ParseGroup(cursor, names, arguments));
    } else {
      SPMD_ASSIGN_OR_RETURN(const ValueId operand, ParseOperand(cursor, names));
      arguments.operands.push_back(operand);
    }
  } while (cursor.Consume(","));
  SPMD_RETURN_IF_ERROR(cursor.Expect(")"));
  return arguments;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

}  // namespace spmd::ir
