// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/partial_plan.h"

#include <utility>

#include "csrc/partition/at_borders.h"

namespace spmd::partition {

PartialPlan::PartialPlan(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors)
    : graph_(graph),
      factors_(factors),
      users_(graph.Users()),
      outputs_(graph.num_values()),
      gradient_layouts_(graph),
      plans_(graph.num_nodes()),
      decided_(graph.num_nodes(), 0),
      has_news_(graph.num_nodes(), 0) {
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    proposals_.push_back(graph.value(v).annotation->sharding.Closed());
    produced_.push_back(proposals_.back());
    grid_of_.push_back(graph.value(v).annotation->grid);
  }
  for (const ir::Output& output : graph.outputs()) outputs_[output.value].push_back(&output);
}

int PartialPlan::GridOf(const ir::Node& node) const {
  if (node.manual != 0) return node.manual_grid;
  for (ir::ValueId v : node.operands) {
    if (v != ir::kNoValue && produced_[v].UsedAxes() != 0) return grid_of_[v];
  }
  for (int r = 0; r < node.num_results; ++r) {
    const ir::ValueId v = node.first_result + r;
    if (Proposal(v).UsedAxes() != 0) return graph_.value(v).annotation->grid;
  }
  if (node.operands.empty() || node.operands[0] == ir::kNoValue) {
    return graph_.value(node.first_result).annotation->grid;
  }
  return grid_of_[node.operands[0]];
}

bool PartialPlan::NeedsMove(ir::NodeId id) const {
  const ir::Node& node = graph_.node(id);
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v != ir::kNoValue && produced_[v] != plans_[id].operands[k]) return true;
  }
  return false;
}

void PartialPlan::Adopt(ir::NodeId id, NodePlan plan) {
  const ir::Node& node = graph_.node(id);
  const bool reads_alike =
      decided_[id] && plans_[id].grid == plan.grid && plans_[id].operands == plan.operands;
  for (int r = 0; r < node.num_results; ++r) {
    const ir::ValueId v = node.first_result + r;
    const bool as_asked =
        IsConstraint(graph_, v) && !MeetsConstraint(graph_, v, plan.results[r], plan.grid);
    const Sharding& seen = as_asked ? Proposal(v) : plan.results[r];
    const int grid = as_asked ? graph_.value(v).annotation->grid : plan.grid;
    if (produced_[v] == seen && grid_of_[v] == grid) continue;
    produced_[v] = seen;
    grid_of_[v] = grid;
    for (ir::NodeId user : users_[v]) has_news_[user] = true;
  }
  if (!in_trial_.empty() && !std::exchange(in_trial_[id], 1)) {
    changes_.emplace_back(id, std::move(plans_[id]));
  }
  plans_[id] = std::move(plan);
  decided_[id] = true;
  if (!reads_alike) TellOfReading(id);
}

PartialPlan::Changes PartialPlan::EndTrial() {
  in_trial_.clear();
  return std::exchange(changes_, {});
}

void PartialPlan::Exchange(Changes& changes) {
  const std::vector<uint8_t> news = has_news_;
  for (auto& [id, plan] : changes) {
    NodePlan now = plans_[id];
    Adopt(id, std::move(plan));
    plan = std::move(now);
  }
  has_news_ = news;
}

// Marks what depends on how the node reads its operands as changed: the nodes that produce them,
// and the other users.
void PartialPlan::TellOfReading(ir::NodeId id) {
  for (ir::ValueId v : graph_.node(id).operands) {
    if (v == ir::kNoValue) continue;
    if (graph_.value(v).producer != ir::kNoNode) has_news_[graph_.value(v).producer] = true;
    for (ir::NodeId user : users_[v]) {
      if (user != id) has_news_[user] = true;
    }
  }
}

}  // namespace spmd::partition
