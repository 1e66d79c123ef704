// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_memo.h"

#include <utility>

#include "csrc/cost/op.h"

namespace spmd::partition {
namespace {

// Small collectives are merged later, so few of them pay the latency. Element-wise work that
// several devices repeat is cheap compared with a collective, and the runtime does it once per
// place; its price only decides ties.
constexpr cost::Weights kWeights = {.latency = 0.1, .memory = 0.05};

}  // namespace

cost::Prices SearchPrices(const machine::Machine& machine) { return {machine, kWeights}; }

const PlanMemo::Planned& PlanMemo::Plan(const ir::Graph& graph, const ir::Node& node,
                                        const propagate::NodeFactors& factors, Choice choice,
                                        int grid) {
  auto [it, is_new] = plans_.try_emplace(PlanKey{factors.factors.get(), grid, std::move(choice)});
  Planned& planned = it->second;
  if (is_new) {
    planned.plan = PlanNode(graph, node, factors, it->first.choice, grid);
    if (planned.plan) planned.work = Work(graph, node, factors, *planned.plan);
  }
  return planned;
}

double PlanMemo::Work(const ir::Graph& graph, const ir::Node& node,
                      const propagate::NodeFactors& nf, const NodePlan& plan) const {
  const Grid& grid = graph.grid(plan.grid);
  cost::OpCost cost(nf.rule != nullptr ? nf.rule->flops_per_point : 1, grid);
  for (size_t f = 0; f < nf->factors.size(); ++f) {
    const propagate::FactorShard& shard = plan.choice.cut[f];
    cost.AddFactor(nf->factors[f].size, {shard.axes, shard.chunk});
  }
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue) continue;
    cost.AddTensor(graph.type(node.operands[k]), plan.operands[k]);
  }
  for (int r = 0; r < node.num_results; ++r) {
    cost.AddTensor(graph.type(node.first_result + r), plan.results[r]);
  }
  return cost.Seconds(prices());
}

double PlanMemo::MoveSeconds(const TensorType& type, const ir::Graph& graph, int grid,
                             const Sharding& from, const Sharding& to) {
  return moves_.Seconds(type, graph.grids()[grid], from, to);
}

}  // namespace spmd::partition
