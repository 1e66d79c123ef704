// SPDX-License-Identifier: Apache-2.0
// A plan in the making: what is decided of each node, how each value is found by its users so far,
// and which decisions are out of date.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

class PartialPlan {
 public:
  // Nothing is decided, and values are found as proposed. Keeps references to both. Requires: every
  // value of `graph` is annotated.
  PartialPlan(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors);

  const ir::Graph& graph() const { return graph_; }
  const std::vector<propagate::NodeFactors>& factors() const { return factors_; }
  const std::vector<ir::NodeId>& users(ir::ValueId v) const { return users_[v]; }
  const std::vector<const ir::Output*>& outputs(ir::ValueId v) const { return outputs_[v]; }

  // What propagation says of a value, and how its users find it: as made, as the user asked, or, as
  // long as nothing is decided, as proposed.
  const Sharding& Proposal(ir::ValueId v) const { return proposals_[v]; }
  const Sharding& produced(ir::ValueId v) const { return produced_[v]; }
  int grid(ir::ValueId v) const { return grid_of_[v]; }
  // The grid to plan a node on: its first cut operand's, else its results'.
  int GridOf(const ir::Node& node) const;

  bool decided(ir::NodeId id) const { return decided_[id]; }
  const NodePlan& of(ir::NodeId id) const { return plans_[id]; }  // Requires: decided
  // Whether an operand comes otherwise than the plan wants it. Requires: decided.
  bool NeedsMove(ir::NodeId id) const;

  void Adopt(ir::NodeId id, NodePlan plan);
  // Whether anything that the node's decision depends on is another since the last look.
  bool TakeNews(ir::NodeId id) { return std::exchange(has_news_[id], 0) != 0; }

  std::vector<NodePlan> TakePlans() && { return std::move(plans_); }

 private:
  void TellOfReading(ir::NodeId id);

  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  std::vector<std::vector<ir::NodeId>> users_;           // by value
  std::vector<std::vector<const ir::Output*>> outputs_;  // by value
  std::vector<Sharding> proposals_, produced_;           // by value
  std::vector<int> grid_of_;                             // by value
  std::vector<NodePlan> plans_;                          // by node
  std::vector<uint8_t> decided_, has_news_;              // by node
};

}  // namespace spmd::partition
