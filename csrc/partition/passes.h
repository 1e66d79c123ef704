// SPDX-License-Identifier: Apache-2.0
// The passes, one file each. The first ones rewrite the graph; from reshard on, they work on a
// program.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/node_plan.h"
#include "csrc/program/program.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// legalize.cc: rewrites ops whose rule says "decompose always" in core ops.
absl::Status Legalize(ir::Graph& graph);

// simplify.cc: removes dead code; merges common subexpressions (never random ops, and never across
// autograd tasks); rewrites patterns, which the file lists.
absl::Status Simplify(ir::Graph& graph);

// batch_indices.cc: turns dimensions that an index numbers one by one into batch dimensions.
absl::Status BatchIndices(ir::Graph& graph);

// reorder.cc: where a view merges dimensions of which a later one is sharded, puts the chain after
// it in an order in which the merged dimension can be sharded. True if it changed any; then
// `factors`, those of `graph` before the call, are stale. `apart` is described at Compiled.
// Requires: `graph` is propagated.
absl::StatusOr<bool> Reorder(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                             std::vector<Dims>& apart);

// Whether an op is decomposed where an axis shards its whole factor only in operands that are made
// from nothing (zeros to which an index_add adds). They can be made whole, and the result may be
// partial sums; which of the two is cheaper, the search decides.
enum class IntoMade { kDecompose, kKeepWhole };
// Whether there may be such an op.
bool MayWriteToMade(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors);

// decompose.cc: decomposes nodes with a whole factor that an axis shards in some operand, if they
// can be written in core ops; gathering an operand's dimension is never cheaper. Adds the names of
// their ops to `names`. True if it decomposed any; then `factors`, of `graph` before the call, are
// stale. `any_made`: set if `into_made` decides anything. Requires: `graph` is propagated.
absl::StatusOr<bool> Decompose(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                               IntoMade into_made, std::vector<std::string>& names, bool& any_made);

// By a call's first result: the operand that the traced op overwrote (`updates` of its node). The
// program decides which of them it overwrites once the order of its instructions is known.
using UpdateHints = absl::flat_hash_map<program::ValueId, int>;

// A graph with a plan per node that is being lowered to a program.
struct Lowering {
  const ir::Graph* graph = nullptr;
  const std::vector<propagate::NodeFactors>* factors = nullptr;
  std::vector<NodePlan> plans;
  const machine::Machine* machine = nullptr;
  program::Program program;
  std::vector<ir::NodeId> node_of;  // by instruction; kNoNode for moves
  UpdateHints updates;
};

// reshard.cc: writes every node as a call with global attributes, preceded by the moves that bring
// its operands into the layouts that its plan requires. There is one move per pair of value and
// layout.
absl::Status Reshard(Lowering& lowering);

// Something that the user should know but that is not an error: "gathers 12 MiB of …".
struct Warning {
  std::string key;  // each key is warned about once
  std::string text;
};

// gather_warnings.cc: warns of gathers of more than `bound_bytes` per device for ops that then do
// the same work on each device, and names the annotation that would avoid it. Requires: Reshard has
// run.
std::vector<Warning> GatherWarnings(const Lowering& lowering, int64_t bound_bytes);

// windows.cc: inserts an exchange for each operand of which a call needs more rows than its shard,
// or others.
absl::Status Windows(Lowering& lowering);

// localise.cc: turns attributes that depend on sizes into expressions over tiles, and marks
// operands that are added once.
absl::Status Localise(Lowering& lowering);

// finish.cc: whether the compiler plans for a failure of a call: of every call that is not
// element-wise, and of element-wise ones that may fail. When donated inputs are really taken is
// decided when the program is loaded, by the facts about its ops alone (csrc/rules/op_facts.h).
bool MayFailOnValues(const program::Program& program, const program::Instruction& instruction);

// finish.cc: the last call that may fail on the values at hand, by the facts about its op, once the
// program runs; -1 if there is none. Lookups do not count whose indices are an input, or a part of
// one: these are checked before the program starts (csrc/runtime/one_place/index_bounds.h).
int LastThatMayFail(const program::Program& program);

// finish.cc: marks donated inputs, decides which operands are overwritten, and inserts frees.
// Donated inputs are overwritten only after instruction `may_write_after`; by default, after the
// last one for whose failure the compiler plans.
inline constexpr int kAfterAllCalls = -2;
void Finish(program::Program& program, const UpdateHints& updates,
            int may_write_after = kAfterAllCalls);

}  // namespace spmd::partition
