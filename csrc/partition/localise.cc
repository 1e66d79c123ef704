// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/partition/passes.h"
#include "csrc/rules/op_call.h"

namespace spmd::partition {
namespace {

// Whether operand k is unreduced along the axes that the call passes through.
bool CarriesTerms(const Lowering& lowering, ir::NodeId id, const rules::Rule& rule, int k) {
  const Choice& choice = lowering.plans[id].choice;
  if (choice.through.empty()) return false;
  if (choice.through_operand != Choice::kJointly) return choice.through_operand == k;
  const rules::OpCall call = rules::OpCall::Of(*lowering.graph, lowering.graph->node(id));
  const rules::Linearity linear = rules::LinearityOf(rule, call, choice.through_kind);
  return std::count(linear.jointly.begin(), linear.jointly.end(), k) > 0;
}

// The axes along which operand k is used at coordinate 0 only: all along which the result is
// unreduced, except those along which the operand itself is.
AxisList AddedOnce(const Lowering& lowering, ir::NodeId id, const rules::Rule& rule, int k) {
  const NodePlan& plan = lowering.plans[id];
  if (!CarriesTerms(lowering, id, rule, k)) return plan.term_axes;
  AxisList axes;
  for (AxisId a : plan.term_axes) {
    if (!(MaskOf(plan.choice.through) & MaskOf(a))) axes.push_back(a);
  }
  return axes;
}

}  // namespace

absl::Status Localise(Lowering& lowering) {
  for (size_t i = 0; i < lowering.program.instructions.size(); ++i) {
    const ir::NodeId id = lowering.node_of[i];
    if (id == ir::kNoNode) continue;
    const propagate::NodeFactors& nf = (*lowering.factors)[id];
    if (nf.rule == nullptr) continue;
    program::Instruction& call = lowering.program.instructions[i];
    const NodePlan& plan = lowering.plans[id];
    rules::CutFactors cut;
    bool any = false;
    for (const propagate::FactorShard& shard : plan.choice.cut) {
      cut.push_back(!shard.axes.empty());
      any = any || cut.back();
    }
    if (nf.rule->local != nullptr && any) {
      const rules::OpCall op_call = rules::OpCall::Of(*lowering.graph, lowering.graph->node(id));
      call.attributes = nf.rule->local(op_call, *nf, cut);
    }
    if (any) {
      for (const auto& [name, value] : nf.rule->local_attributes) call.attributes.Set(name, value);
    }
    for (int k : nf.rule->added) {
      if (k >= static_cast<int>(call.operands.size()) || call.operands[k] == program::kNoValue) {
        continue;
      }
      const AxisList axes = AddedOnce(lowering, id, *nf.rule, k);
      if (!axes.empty()) call.added_once.push_back({k, axes});
    }
  }
  return absl::OkStatus();
}

}  // namespace spmd::partition
