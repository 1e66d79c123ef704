// SPDX-License-Identifier: Apache-2.0
// What cutting one node means for its operands and results.
#pragma once

#include <optional>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// How a node is cut: axes per factor, and the axes along which terms pass through it because it is
// linear. An axis occurs once.
struct Choice {
  static constexpr int kJointly = -1;

  propagate::Cut cut;
  AxisList through;
  ReduceKind through_kind = ReduceKind::kSum;
  int through_operand = kJointly;  // or the one linear operand that holds terms

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
  std::vector<Sharding> operands;  // required; rank-0 entry for an absent operand
  std::vector<Sharding> results;   // produced
  // Axes along which the results are terms that this node made or passed: added operands go to
  // coordinate 0 of these only.
  AxisList term_axes;
};

// nullopt when the choice is not legal: a whole factor is cut, a compound dimension is not an
// interval, results would be terms of two kinds.
std::optional<NodePlan> PlanNode(const ir::Graph& graph, const ir::Node& node,
                                 const propagate::NodeFactors& factors, Choice choice, int grid);

// Windows that are needed under a cut: those of cut factors which are not the shard itself.
std::vector<const rules::Window*> ActiveWindows(const rules::OpFactors& factors,
                                                const propagate::Cut& cut,
                                                absl::Span<const TensorType* const> operands);

// Products and convolutions: what a program spends its time on.
bool IsContraction(const propagate::NodeFactors& factors);

// A choice as the text form's cut.
std::vector<ir::FactorCut> ToFactorCuts(const Choice& choice);

}  // namespace spmd::partition
