// SPDX-License-Identifier: Apache-2.0
// The parts of a statement that graphs and programs write alike: meshes, types, shardings, argument
// lists. Each printer here is the inverse of the parser below it.
#pragma once

#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/ir/attributes.h"
#include "csrc/ir/cursor.h"
#include "csrc/ir/graph.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::ir {

// The names of a file being parsed. All errors carry the cursor's line.
class NameTable {
 public:
  // Errors: the name is taken.
  absl::Status Define(const Cursor& at, absl::string_view name, int32_t id);
  // Reads "%name". Errors: there is no such value yet.
  absl::StatusOr<int32_t> Read(Cursor& cursor) const;

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
// Reads what follows the word `mesh`. Errors: more than 2^20 devices, what Mesh refuses.
absl::StatusOr<NamedGrid> ParseMesh(Cursor& cursor);

// scalar $0: float
std::string ScalarToString(int slot, ScalarKind kind);
// Reads what follows the word `scalar`. Errors: the slot is not `next_slot`.
absl::StatusOr<ScalarKind> ParseScalar(Cursor& cursor, int next_slot);

// Reads "f32[2,3]".
absl::StatusOr<TensorType> ParseType(Cursor& cursor);
// Reads "{data},{} unreduced(sum){model}"; nothing at all is the sharding of a 0-d value.
absl::StatusOr<Sharding> ParseSharding(Cursor& cursor, const Grid& grid);

// (%x, _, [%a, %b], dim=1)
struct Arguments {
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<OperandGroup, 1> groups;
  Attributes attributes;
};
std::string ArgumentsToString(absl::Span<const ValueId> operands,
                              absl::Span<const OperandGroup> groups, const Attributes& attributes,
                              const std::function<absl::string_view(ValueId)>& name_of);
absl::StatusOr<Arguments> ParseArguments(Cursor& cursor, const NameTable& names);

// A string in quotes, with escapes.
std::string Quoted(absl::string_view text);

}  // namespace spmd::ir
