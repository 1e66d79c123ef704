// SPDX-License-Identifier: Apache-2.0
// What Compile finds by search; all else of a program follows from it and the graph. A program
// that is kept for the next process is kept as this: whoever wrote the text, what is lowered from
// it computes what the graph says.
//
//   decomposed 3,17
//   value 0 @0 {0,1},{}
//   node @0 0:0,1 2:2/3
//   node @0 1:0 through 0 sum 2
//
// One line for each round of decompositions with the nodes that were taken apart; one for each
// value whose proposed sharding lowering asks for; one for each node of the final graph: its grid,
// "factor:axes" or "factor:axes/chunk" for each cut factor, and the terms that pass through it: the
// operand that holds them (-1: all that are jointly linear), how they combine, their axes. Axes and
// grids are numbers.
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
  // Cut factors and what they are cut by, ascending; the rest is not cut.
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
  std::vector<std::vector<ir::NodeId>> decomposed;  // by round, ascending
  std::vector<ValueDecision> values;                // ascending
  std::vector<NodeDecision> nodes;

  std::string ToString() const;
  // Errors: InvalidArgument. What names things that do not exist is left to those who use it.
  static absl::StatusOr<Decisions> Parse(absl::string_view text);
};

NodeDecision DecisionOf(const NodePlan& plan);
// The plan that a decision makes. Errors: InvalidArgument for one that no search could have found:
// axes that the grid does not have or that are used twice, chunks that do not cover the factor,
// what the op needs whole cut, terms passed through what is not linear.
absl::StatusOr<NodePlan> PlanOf(const ir::Graph& graph, ir::NodeId id,
                                const propagate::NodeFactors& factors,
                                const NodeDecision& decision);

// The proposals that lowering asks for: of inputs, and of outputs that are no inputs' new values.
std::vector<ValueDecision> ProposalsOf(const ir::Graph& graph);
// Annotates the graph, which is not propagated, with these and everything else as not cut.
// Errors: InvalidArgument for proposals that are not those of the values that ProposalsOf names, or
// do not fit them.
absl::Status Propose(const std::vector<ValueDecision>& proposals, ir::Graph& graph);

}  // namespace spmd::partition
