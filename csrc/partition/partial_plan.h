// SPDX-License-Identifier: Apache-2.0
// An unfinished plan: what is decided for each node, the sharding in which users find each value so
// far, and which decisions are out of date.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/gradient_layouts.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

class PartialPlan {
 public:
  // Starts with nothing decided: users find all values as proposed. Keeps references to both
  // arguments. Requires: every value of `graph` is annotated.
  PartialPlan(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors);

  const ir::Graph& graph() const { return graph_; }
  const std::vector<propagate::NodeFactors>& factors() const { return factors_; }
  const std::vector<ir::NodeId>& users(ir::ValueId v) const { return users_[v]; }
  const std::vector<const ir::Output*>& outputs(ir::ValueId v) const { return outputs_[v]; }
  const GradientLayouts& gradient_layouts() const { return gradient_layouts_; }

  // Proposal: the sharding that propagation found for a value. produced: the one in which its users
  // find it. This is the one in which its producer makes it, or the user's where that makes a move
  // necessary, or the proposal as long as the producer is not decided.
  const Sharding& Proposal(ir::ValueId v) const { return proposals_[v]; }
  const Sharding& produced(ir::ValueId v) const { return produced_[v]; }
  int grid(ir::ValueId v) const { return grid_of_[v]; }
  // The grid on which a node is planned: that of its manual axes, else of its first sharded
  // operand, else of its results.
  int GridOf(const ir::Node& node) const;

  bool decided(ir::NodeId id) const { return decided_[id]; }
  const NodePlan& of(ir::NodeId id) const { return plans_[id]; }  // Requires: decided
  // Whether some operand has another sharding than the node's plan requires. Requires: decided(id).
  bool NeedsMove(ir::NodeId id) const;

  void Adopt(ir::NodeId id, NodePlan plan);
  // Whether anything on which the node's decision depends has changed since the last call.
  bool TakeNews(ir::NodeId id) { return std::exchange(has_news_[id], 0) != 0; }
  void ForgetNews() { std::fill(has_news_.begin(), has_news_.end(), 0); }

  // From BeginTrial to EndTrial, the plan of each node that adopts another one is kept. Requires:
  // every node is decided, and no trial is under way.
  using Changes = std::vector<std::pair<ir::NodeId, NodePlan>>;  // a node and its plan before
  void BeginTrial() { in_trial_.assign(plans_.size(), 0); }
  Changes EndTrial();
  // Exchanges the plans of the nodes with those in `changes`. No node takes this as news.
  void Exchange(Changes& changes);

  std::vector<NodePlan> TakePlans() && { return std::move(plans_); }

 private:
  void TellOfReading(ir::NodeId id);

  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  std::vector<std::vector<ir::NodeId>> users_;           // by value
  std::vector<std::vector<const ir::Output*>> outputs_;  // by value
  const GradientLayouts gradient_layouts_;
  std::vector<Sharding> proposals_, produced_;  // by value
  std::vector<int> grid_of_;                    // by value
  std::vector<NodePlan> plans_;                 // by node
  std::vector<uint8_t> decided_, has_news_;     // by node
  // By node: whether it has changed in the trial; empty without one.
  std::vector<uint8_t> in_trial_;
  Changes changes_;  // of the trial
};

}  // namespace spmd::partition
