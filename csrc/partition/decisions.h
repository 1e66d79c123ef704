// SPDX-License-Identifier: Apache-2.0
// What Compile finds by search. Everything else in a program follows from this and the graph. A
// program that is kept for the next process is kept in this form. Whoever wrote the text, a program
// that is lowered from it computes what the graph says.
//
//   reordered
//   decomposed 3,17
//   value 0 @0 {0,1},{}
//   node @0 0:0,1 2:2/3
//   node @0 1:0 through 0 sum 2
//
// There is one line for each round in which chains were put in another order (reorder.cc), or rows
// were "owned" (own_rows.h), or ops put in "rings" (rings.h), or, by number, nodes were decomposed,
// in order; one for each
// value whose proposed sharding lowering needs; and one for each node of the final graph. A node's
// line has its grid, "factor:axes" or "factor:axes/chunk" for each sharded factor, and the partial
// sums that pass through it: the operand that holds them (-1: all that are jointly linear), how
// they combine, and their axes. Axes and grids are numbers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

struct NodeDecision {
  int grid = 0;
  // The sharded factors in ascending order, each with its axes and chunk. The others are not
  // sharded.
  std::vector<std::pair<int, propagate::FactorShard>> cut;
  AxisList through;
  ReduceKind through_kind = ReduceKind::kSum;
  int through_operand = Choice::kJointly;

  friend bool operator==(const NodeDecision& a, const NodeDecision& b) {
    return a.grid == b.grid && a.cut == b.cut && a.through == b.through &&
           a.through_kind == b.through_kind && a.through_operand == b.through_operand;
  }
};

struct ValueDecision {
  ir::ValueId value = 0;
  int grid = 0;
  Sharding sharding;  // closed, reduced
};

struct Decisions {
  // By round; {}: reordered; {kNoNode}: owned; {kRings}: in rings.
  std::vector<std::vector<ir::NodeId>> decomposed;
  static constexpr ir::NodeId kRings = -2;
  std::vector<ValueDecision> values;  // ascending
  std::vector<NodeDecision> nodes;

  std::string ToString() const;
  // Errors: InvalidArgument if `text` is not in this form. Whether nodes, axes and grids exist is
  // checked where the decisions are used.
  static absl::StatusOr<Decisions> Parse(absl::string_view text);
};

NodeDecision DecisionOf(const NodePlan& plan);
// The plan that `decision` gives for the node `id`.
// Errors: InvalidArgument for a decision that no search could have found: axes that the grid does
// not have or that are used twice, a chunk that does not cover the factor, a sharded factor that
// the op needs whole, partial sums passed through an op that is not linear.
absl::StatusOr<NodePlan> PlanOf(const ir::Graph& graph, ir::NodeId id,
                                const propagate::NodeFactors& factors,
                                const NodeDecision& decision);

// The proposals that lowering needs: those of inputs, of outputs that do not become an input's new
// value, and of values whose annotation has open dimensions.
std::vector<ValueDecision> ProposalsOf(const ir::Graph& graph);
// Annotates `graph`, which is not propagated, with `proposals`, and every other value without an
// annotation as replicated.
// Errors: InvalidArgument if `proposals` are not for the values that ProposalsOf names, or do not
// fit them, or an annotation that is there.
absl::Status Propose(const std::vector<ValueDecision>& proposals, ir::Graph& graph);

}  // namespace spmd::partition
