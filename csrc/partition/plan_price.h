// SPDX-License-Identifier: Apache-2.0
// The prices of plans: their ops and the moves between them, in seconds as the search weighs them.
//
// A move off the path between the first contraction and the last (of a weight on its way there, or
// of a gradient after it) runs next to other work and weighs an eighth. Partial sums whose users
// are not decided may be reduced later, and weigh half.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/partial_plan.h"
#include "csrc/partition/plan_memo.h"

namespace spmd::partition {

class PlanPrice {
 public:
  // Keeps references to both arguments.
  PlanPrice(const PartialPlan& plan, PlanMemo& memo);

  // The price of the whole plan: every op once, every move once. Requires: every node is decided.
  double Total();
  // The price of everything that the plans of `nodes` affect: their work, and the moves of their
  // operands and results. Requires: `nodes` are decided.
  double Around(absl::Span<const ir::NodeId> nodes);
  // The price of `plan` for the node `id`, given what is decided: its `work`, and the moves of its
  // operands and results. With `takes_over` (Option::takes_over), users that are not decided are
  // assumed to accept the results as they come, without a move.
  double Of(ir::NodeId id, const NodePlan& plan, double work, bool takes_over);
  // The price of moving the value from one layout to another.
  double OfMove(ir::ValueId v, const Sharding& from, int from_grid, const Sharding& to,
                int to_grid);

 private:
  double ThroughBias(const ir::Node& node, const propagate::NodeFactors& nf,
                     const NodePlan& plan) const;
  double HaloSeconds(const ir::Node& node, const propagate::NodeFactors& nf,
                     const NodePlan& plan) const;
  double OperandSeconds(ir::NodeId id, ir::ValueId v, const Sharding& wanted, int grid);
  double ResultSeconds(ir::ValueId v, const Sharding& produced, int grid,
                       double undecided_weight = 1);
  bool MayPassTerms(ir::NodeId user, ir::ValueId v, ReduceKind kind) const;
  bool MeetsTerms(ir::NodeId user, ir::ValueId v, const Sharding& terms) const;
  double SlowestLink(int grid_index) const;

  const PartialPlan& plan_;
  PlanMemo& memo_;
  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  const cost::Prices& prices_;
  const std::vector<bool> off_path_;  // by value
};

}  // namespace spmd::partition
