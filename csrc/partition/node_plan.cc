// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/node_plan.h"

#include <algorithm>

#include "csrc/rules/op_call.h"

namespace spmd::partition {
namespace {

bool AddTerms(Sharding& sharding, absl::Span<const AxisId> axes, ReduceKind kind) {
  if (axes.empty()) return true;
  if (sharding.IsUnreduced() && sharding.reduce_kind != kind) return false;
  if (sharding.UsedAxes() & MaskOf(axes)) return false;
  sharding.reduce_kind = kind;
  sharding.unreduced.insert(sharding.unreduced.end(), axes.begin(), axes.end());
  std::sort(sharding.unreduced.begin(), sharding.unreduced.end());
  return true;
}

// The operands that are unreduced along choice.through.
absl::InlinedVector<int, 4> ThroughOperands(const ir::Graph& graph, const ir::Node& node,
                                            const propagate::NodeFactors& nf,
                                            const Choice& choice) {
  if (choice.through_operand != Choice::kJointly) return {choice.through_operand};
  return rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph, node), choice.through_kind).jointly;
}

}  // namespace

std::optional<NodePlan> PlanNode(const ir::Graph& graph, const ir::Node& node,
                                 const propagate::NodeFactors& nf, Choice choice, int grid_index) {
  const Grid& grid = graph.grid(grid_index);
  NodePlan plan;
  plan.grid = grid_index;
  for (size_t f = 0; f < choice.cut.size(); ++f) {
    if (!choice.cut[f].axes.empty() && nf->factors[f].whole) return std::nullopt;
  }
  if (node.manual & MaskOf(choice.through)) return std::nullopt;
  propagate::Cut cut = choice.cut;
  for (const propagate::FactorShard& shard : cut) {
    if (node.manual & MaskOf(shard.axes)) return std::nullopt;
  }
  propagate::CutBorder(node, *nf, cut);
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue) {
      plan.operands.push_back(Sharding::Replicated(0));
      continue;
    }
    std::optional<Sharding> s = propagate::ShardingUnder(
        *nf, nf->operands[k], graph.type(node.operands[k]).dims, cut, grid);
    if (!s) return std::nullopt;
    s->manual = AxesIn(graph.value(node.operands[k]).manual);
    plan.operands.push_back(*std::move(s));
  }
  for (int r = 0; r < node.num_results; ++r) {
    std::optional<Sharding> s = propagate::ShardingUnder(
        *nf, nf->results[r], graph.type(node.first_result + r).dims, cut, grid);
    if (!s) return std::nullopt;
    s->manual = AxesIn(graph.value(node.first_result + r).manual);
    const bool nothing = graph.type(node.first_result + r).NumElements() == 0;
    const bool terms = !nothing && !nf->SameInShards(r);
    for (size_t f = 0; f < choice.cut.size() && terms; ++f) {
      const AxisList& axes = choice.cut[f].axes;
      if (axes.empty() || nf->InResult(static_cast<int>(f), r)) continue;
      if (!nf->InAnyOperand(static_cast<int>(f))) continue;
      if (!AddTerms(*s, axes, nf->factors[f].reduce)) return std::nullopt;
      for (AxisId a : axes) {
        if (!(MaskOf(plan.term_axes) & MaskOf(a))) plan.term_axes.push_back(a);
      }
    }
    if (node.border != nullptr && !node.border->enters) {
      const Sharding& global = node.border->sharding;
      if (!AddTerms(*s, global.unreduced, global.reduce_kind)) return std::nullopt;
    }
    plan.results.push_back(*std::move(s));
  }
  if (!choice.through.empty()) {
    for (int k : ThroughOperands(graph, node, nf, choice)) {
      if (!AddTerms(plan.operands[k], choice.through, choice.through_kind)) return std::nullopt;
    }
    // An op that is linear in an operand is so in every result: the backward pass of layer norm
    // gives partial sums of the input's gradient and of the weight's.
    for (Sharding& result : plan.results) {
      if (!AddTerms(result, choice.through, choice.through_kind)) return std::nullopt;
    }
    plan.term_axes.insert(plan.term_axes.end(), choice.through.begin(), choice.through.end());
  }
  plan.choice = std::move(choice);
  return plan;
}

std::vector<const rules::Window*> ActiveWindows(const rules::OpFactors& factors,
                                                const propagate::Cut& cut,
                                                absl::Span<const TensorType* const> operands) {
  std::vector<const rules::Window*> active;
  for (const rules::Window& w : factors.windows) {
    if (cut[w.factor].axes.empty()) continue;
    const Expr start = Expr::Start(Result(0), 0);
    const Expr end = start + Expr::Size(Result(0), 0);
    const bool trivial = w.order.empty() && w.extent == operands[w.operand]->dims[w.dim] &&
                         w.begin == start && w.end == end;
    if (!trivial) active.push_back(&w);
  }
  return active;
}

bool IsContraction(const propagate::NodeFactors& factors) {
  return factors.rule != nullptr && factors.rule->flops_per_point >= 2;
}

std::vector<ir::FactorCut> ToFactorCuts(const Choice& choice) {
  std::vector<ir::FactorCut> cuts;
  for (size_t f = 0; f < choice.cut.size(); ++f) {
    if (choice.cut[f].axes.empty()) continue;
    cuts.push_back({static_cast<int>(f), choice.cut[f].axes, choice.cut[f].chunk});
  }
  if (!choice.through.empty()) {
    const int code = choice.through_operand == Choice::kJointly ? -1 : -2 - choice.through_operand;
    cuts.push_back({code, choice.through, 0});
  }
  return cuts;
}

}  // namespace spmd::partition
