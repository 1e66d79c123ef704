// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {

// Runs after every pass in tests and debug builds. Clauses, each with its own message naming the
// value or node:
//   1. every operand is an input or a result of an earlier node, or absent (-1)
//   2. operand groups are in range, ascending, disjoint; an absent operand may stand in a group
//   3. names are unique and are identifiers or numbers
//   4. every output names a value; `becomes` names an input of the same type, at most once each
//   5. run-time scalars are declared; attributes hold no expressions
//   6. annotations: the grid exists, rank agrees, axes are in the grid and used once
//   7. `updates` names an operand
//   8. cuts name axes of the cut grid, each axis at most once per node
//   9. reserved ops (call, manual) do not occur
//  10. borders of manual regions fit their sizes and enter or leave axes once; the manual operands
//  of
//      a node are on one mesh
absl::Status Verify(const Graph& graph);

}  // namespace spmd::ir
