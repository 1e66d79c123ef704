// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/repeated_work.h"

#include <tuple>

namespace spmd::partition {
namespace {

// The part of all work in contractions that is worth another search.
constexpr double kWorthwhile = 0.01;

// Axes of each grid that an annotation uses.
std::vector<AxisMask> AxesInUse(const ir::Graph& graph) {
  std::vector<AxisMask> in_use(graph.grids().size(), 0);
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const auto& annotation = graph.value(v).annotation;
    if (annotation) in_use[annotation->grid] |= annotation->sharding.UsedAxes();
  }
  return in_use;
}

double Points(const rules::OpFactors& factors) {
  double points = 1;
  for (const rules::Factor& f : factors.factors) points *= static_cast<double>(f.size);
  return points;
}

// Whether factor f runs over every operand and result, so that sharding it needs nothing from other
// devices.
bool IsBatch(const rules::OpFactors& factors, const ir::Node& node, int f) {
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue || factors.operands[k].empty()) continue;
    if (!factors.InOperand(f, static_cast<int>(k))) return false;
  }
  for (int r = 0; r < node.num_results; ++r) {
    if (!factors.results[r].empty() && !factors.InResult(f, r)) return false;
  }
  return true;
}

// The factor that can take `axis` evenly beside the axes that shard it already; -1 if there is
// none. Batch factors are preferred; then those that the plan does not shard, since the user said
// how the batch is sharded; then the larger one. If the batch is to be shared, only factors that
// the plan shards qualify.
int FactorFor(const rules::OpFactors& factors, const ir::Node& node, const propagate::Cut& chosen,
              const propagate::Cut& cut, AxisId axis, const Grid& grid, Share share) {
  int best = -1;
  std::tuple<bool, bool, int64_t> best_rank;
  for (int f = 0; f < static_cast<int>(factors.factors.size()); ++f) {
    const rules::Factor& factor = factors.factors[f];
    if (factor.whole || factor.granularity > 1 || cut[f].chunk != 0) continue;
    if (!factors.InAnyResult(f)) continue;
    if (share == Share::kBatch && chosen[f].axes.empty()) continue;
    if (factor.size % (grid.size(cut[f].axes) * grid.size(axis)) != 0) continue;
    const std::tuple rank(IsBatch(factors, node, f), chosen[f].axes.empty(), factor.size);
    if (best >= 0 && rank <= best_rank) continue;
    best = f;
    best_rank = rank;
  }
  return best;
}

// Proposes the shardings that the results of a node have in its plan.
void Propose(const ir::Graph& graph, const ir::Node& node, const NodePlan& plan,
             std::vector<propagate::Proposal>& proposals) {
  for (int r = 0; r < node.num_results; ++r) {
    const Sharding sharding = plan.results[r].Reduced();
    proposals.push_back({node.first_result + r, plan.grid, sharding, /*may_grow=*/false});
  }
}

}  // namespace

std::vector<propagate::Proposal> ShareRepeatedWork(
    const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
    const std::vector<NodePlan>& plans, Share share) {
  const std::vector<AxisMask> in_use = AxesInUse(graph);
  std::vector<propagate::Proposal> proposals;
  double all = 0, repeated = 0;
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const propagate::NodeFactors& nf = factors[id];
    if (!IsContraction(nf)) continue;
    const NodePlan& plan = plans[id];
    const Grid& grid = graph.grid(plan.grid);
    const double points = nf.rule->flops_per_point * Points(*nf);
    all += points;
    AxisMask idle = in_use[plan.grid] & ~graph.node(id).manual;
    for (const propagate::FactorShard& shard : plan.choice.cut) idle &= ~MaskOf(shard.axes);
    const ir::Node& node = graph.node(id);
    if (idle == 0) {
      if (share == Share::kBatch) Propose(graph, node, plan, proposals);
      continue;
    }
    propagate::Cut cut = plan.choice.cut;
    double copies = 1;
    for (int a = 0; a < grid.num_axes(); ++a) {
      const AxisId axis = static_cast<AxisId>(a);
      if (!(idle & MaskOf(axis))) continue;
      const int f = FactorFor(*nf, node, plan.choice.cut, cut, axis, grid, share);
      if (f < 0) continue;
      cut[f].axes.push_back(axis);
      copies *= static_cast<double>(grid.size(axis));
    }
    if (copies == 1) continue;
    repeated += points * (copies - 1);
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      std::optional<Sharding> sharding =
          propagate::ShardingUnder(*nf, nf->results[r], graph.type(v).dims, cut, grid);
      if (sharding) proposals.push_back({v, plan.grid, *std::move(sharding)});
    }
  }
  if (repeated == 0 || repeated < kWorthwhile * all) proposals.clear();
  return proposals;
}

bool KeepsCuts(const std::vector<propagate::NodeFactors>& factors,
               const std::vector<NodePlan>& before, const std::vector<NodePlan>& after) {
  for (size_t id = 0; id < factors.size(); ++id) {
    if (!IsContraction(factors[id])) continue;
    for (size_t f = 0; f < factors[id]->factors.size(); ++f) {
      const AxisMask was = MaskOf(before[id].choice.cut[f].axes);
      if (was & ~MaskOf(after[id].choice.cut[f].axes)) return false;
    }
  }
  return true;
}

}  // namespace spmd::partition
