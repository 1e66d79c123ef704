// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/passes.h"
#include "csrc/rules/op_call.h"

namespace spmd::partition {

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
    if (plan.term_axes.empty()) continue;
    for (int k : nf.rule->added) {
      if (k < static_cast<int>(call.operands.size()) && call.operands[k] != program::kNoValue) {
        call.added_once.push_back({k, plan.term_axes});
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace spmd::partition
