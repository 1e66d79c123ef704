// SPDX-License-Identifier: Apache-2.0
// The parts of statements that graphs and programs write alike. Each printer is the inverse of the
// parser below it. Parsers leave the text that follows; their errors have no line number (see
// AtLine).
#pragma once

#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/attributes.h"
#include "csrc/ir/graph.h"
#include "csrc/mesh/grid.h"
#include "csrc/util/scanner.h"

namespace spmd::ir {

// IsValueName: an identifier in which dots are allowed after the first character ("fc1.weight"), or
// a number name. IsNumberName: a number of at most nine digits without a leading zero.
bool IsValueName(absl::string_view name);
bool IsNumberName(absl::string_view name);
// Parses "%name" and returns the name.
absl::StatusOr<absl::string_view> ParseValueName(Scanner& in);
// Parses the name of an op: letters, digits, '_', '.', ':'.
absl::StatusOr<absl::string_view> ParseOpName(Scanner& in);

// The names that a file being parsed has defined so far.
class NameTable {
 public:
  // Errors: the name is already defined; the message names the line.
  absl::Status Define(absl::string_view name, int32_t id, int line);
  // Parses "%name" and returns its id.
  // Errors: no such value is defined yet.
  absl::StatusOr<int32_t> Parse(Scanner& in) const;

 private:
  struct Entry {
    int32_t id;
    int line;
  };
  absl::flat_hash_map<std::string, Entry> entries_;
};

// mesh @m [data=2, model=4] devices=[…]
struct NamedGrid {
  std::string name;
  GridPtr grid;
};
std::string MeshToString(absl::string_view name, const Grid& grid);
absl::StatusOr<NamedGrid> ParseMesh(Scanner& in);  // after the word `mesh`
// Parses "@m" and returns its index.
// Errors: no such mesh.
absl::StatusOr<int> ParseMeshRef(Scanner& in, absl::Span<const std::string> names);

// scalar $0: float
std::string ScalarToString(int slot, ScalarKind kind);
// Parses what follows the word `scalar`.
// Errors: the slot is not `next_slot`.
absl::StatusOr<ScalarKind> ParseScalar(Scanner& in, int next_slot);

// (%x, _, [%a, %b], dim=1)
struct Arguments {
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<OperandGroup, 1> groups;
  Attributes attributes;
};
// `name_of` returns "%x". A group that is out of range is written with its begin and size:
// "[?3+2]".
std::string ArgumentsToString(absl::Span<const ValueId> operands,
                              absl::Span<const OperandGroup> groups, const Attributes& attributes,
                              const std::function<std::string(ValueId)>& name_of);
absl::StatusOr<Arguments> ParseArguments(Scanner& in, const NameTable& names);

// Parses "(7)".
absl::StatusOr<int64_t> ParseInParentheses(Scanner& in);

}  // namespace spmd::ir
