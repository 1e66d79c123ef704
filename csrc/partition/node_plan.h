// SPDX-License-Identifier: Apache-2.0
// What sharding the factors of one node means for its operands and results.
#pragma once

#include <optional>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// How a node is sharded: the axes of each factor, and the axes along which partial sums pass
// through it because it is linear. An axis occurs once.
struct Choice {
  static constexpr int kJointly = -1;

  propagate::Cut cut;
  AxisList through;
  ReduceKind through_kind = ReduceKind::kSum;
  int through_operand = kJointly;  // or the one linear operand that holds partial sums

  friend bool operator==(const Choice& a, const Choice& b) {
    return a.cut == b.cut && a.through == b.through && a.through_kind == b.through_kind &&
           a.through_operand == b.through_operand;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Choice& c) {
    return H::combine(std::move(h), c.cut, c.through, c.through_kind, c.through_operand);
  }
};

struct NodePlan {
  Choice choice;
  int grid = 0;
  std::vector<Sharding> operands;  // required; rank 0 for an absent operand
  std::vector<Sharding> results;   // produced
  // The axes along which the results are partial sums that this node computed or passed through.
  // Operands that are added once are used at coordinate 0 of these axes only.
  AxisList term_axes;
};

// The plan that follows from `choice`. nullopt if the choice is not legal: it shards a whole
// factor, a shard of a compound dimension is not an interval, or the results would be unreduced
// with two reduce kinds.
std::optional<NodePlan> PlanNode(const ir::Graph& graph, const ir::Node& node,
                                 const propagate::NodeFactors& factors, Choice choice, int grid);

// The windows of sharded factors that differ from the shard itself.
std::vector<const rules::Window*> ActiveWindows(const rules::OpFactors& factors,
                                                const propagate::Cut& cut,
                                                absl::Span<const TensorType* const> operands);

// True for matrix products and convolutions, on which a program spends its time.
bool IsContraction(const propagate::NodeFactors& factors);

// The choice as the cut in a graph's text form.
std::vector<ir::FactorCut> ToFactorCuts(const Choice& choice);

}  // namespace spmd::partition
