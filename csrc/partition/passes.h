// SPDX-License-Identifier: Apache-2.0
// The passes, one file each. Graph → graph first; from reshard on, a program.
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

// legalize.cc: ops whose rule says "decompose always" are rewritten in core ops.
absl::Status Legalize(ir::Graph& graph);

// simplify.cc: dead code; common subexpressions (never random ops, never across autograd tasks);
// patterns, listed in the file.
absl::Status Simplify(ir::Graph& graph);

// batch_indices.cc: dimensions that an index numbers one by one become batch dimensions.
absl::Status BatchIndices(ir::Graph& graph);

// reorder.cc: chains behind a view that merges dimensions of which a later one is cut are carried
// in an order in which the merged dimension can be cut. True where any was; `factors`, those of
// `graph` as it comes, are stale then. `apart`: see Compiled. Requires: propagated.
absl::StatusOr<bool> Reorder(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                             std::vector<Dims>& apart);

// decompose.cc: nodes whose whole factor carries an axis in some operand, and which can be written
// in core ops, are: gathering the dimension is never cheaper. Gives the nodes that were taken
// apart and adds the names of their ops to `names`; where there are any, `factors`, those of
// `graph` as it comes, are stale. Requires: propagated.
absl::StatusOr<std::vector<ir::NodeId>> Decompose(
    ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
    std::vector<std::string>& names);
// The same for nodes that are known. Errors: InvalidArgument where one of them cannot be.
absl::Status DecomposeThese(ir::Graph& graph, const std::vector<ir::NodeId>& nodes,
                            std::vector<std::string>& names);

// By a call's first result: the operand that the traced op overwrote (`updates` of its node). Which
// of them the program overwrites is known once the order of its instructions is.
using UpdateHints = absl::flat_hash_map<program::ValueId, int>;

// A graph with a plan per node on its way to becoming a program.
struct Lowering {
  const ir::Graph* graph = nullptr;
  const std::vector<propagate::NodeFactors>* factors = nullptr;
  std::vector<NodePlan> plans;
  const machine::Machine* machine = nullptr;
  program::Program program;
  std::vector<ir::NodeId> node_of;  // by instruction; kNoNode for moves
  UpdateHints updates;
};

// reshard.cc: every node as a call with global attributes, preceded by the moves that bring its
// operands into the layouts its plan requires; one move per (value, layout).
absl::Status Reshard(Lowering& lowering);

// "gathers 12 MiB of …": what the user should know but that is no error.
struct Warning {
  std::string key;  // warn once per key
  std::string text;
};

// gather_warnings.cc: gathers of more than `bound_bytes` per device for ops that then do the same
// work on each device, with the annotation that would avoid it. Requires: resharded.
std::vector<Warning> GatherWarnings(const Lowering& lowering, int64_t bound_bytes);

// windows.cc: operands of which a call needs more (or other) rows than its shard get an exchange.
absl::Status Windows(Lowering& lowering);

// localise.cc: attributes that speak of sizes become expressions over tiles; operands that are
// added once are marked.
absl::Status Localise(Lowering& lowering);

// collectives.cc: collectives of one kind over the same axes become one instruction, at the place
// where the first of their results is needed, up to `cap_bytes` of results each.
void MergeCollectives(program::Program& program, int64_t cap_bytes);

// finish.cc: a call that may fail for some values of its operands (an index out of range, a
// singular matrix), as far as the plan is concerned: all but element-wise ones. When inputs are
// really taken the runtime decides, which knows the kernels (csrc/runtime/op_binding.h).
bool MayFailOnValues(const program::Instruction& instruction);

// finish.cc: donated inputs, overwriting, frees.
void Finish(program::Program& program, const UpdateHints& updates);

}  // namespace spmd::partition
