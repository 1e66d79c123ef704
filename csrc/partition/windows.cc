// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/partition/passes.h"
#include "csrc/program/new_names.h"
#include "csrc/rules/op_call.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

// The windows of one operand in the form of the program.
struct OperandWindows {
  std::vector<program::WindowDim> dims;
  double fill = 0;
};

OperandWindows WindowsOf(const std::vector<const rules::Window*>& active, int operand,
                         const propagate::Cut& cut) {
  OperandWindows result;
  for (const rules::Window* w : active) {
    if (w->operand != operand) continue;
    result.dims.push_back({w->dim, w->extent, cut[w->factor].chunk, w->begin, w->end, w->order});
    result.fill = w->fill;
  }
  std::sort(result.dims.begin(), result.dims.end(),
            [](const auto& a, const auto& b) { return a.dim < b.dim; });
  return result;
}

}  // namespace

absl::Status Windows(Lowering& lowering) {
  program::Program& program = lowering.program;
  std::vector<program::Instruction> instructions;
  std::vector<ir::NodeId> node_of;
  struct Made {
    std::vector<program::WindowDim> dims;
    double fill;
    program::ValueId windowed;
  };
  // By value: its windows. A window that two calls need is exchanged once.
  absl::flat_hash_map<program::ValueId, std::vector<Made>> made_of;
  program::NewNames names(program);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    program::Instruction call = std::move(program.instructions[i]);
    const ir::NodeId id = lowering.node_of[i];
    if (id != ir::kNoNode && !(*lowering.factors)[id]->windows.empty()) {
      const propagate::Cut& cut = lowering.plans[id].choice.cut;
      const rules::OpCall op_call = rules::OpCall::Of(*lowering.graph, lowering.graph->node(id));
      const auto active = ActiveWindows(*(*lowering.factors)[id], cut, op_call.operands);
      for (size_t k = 0; k < call.operands.size(); ++k) {
        OperandWindows windows = WindowsOf(active, static_cast<int>(k), cut);
        if (windows.dims.empty()) continue;
        const program::ValueId from = call.operands[k];
        std::vector<Made>& made = made_of[from];
        auto it = std::find_if(made.begin(), made.end(), [&](const Made& m) {
          return m.dims == windows.dims && m.fill == windows.fill;
        });
        if (it == made.end()) {
          program::Value value = program.values[from];
          value.name.clear();
          value.windows = windows.dims;
          program::Instruction exchange;
          exchange.code = program::OpCode::kExchange;
          exchange.operands = {from};
          exchange.fill = windows.fill;
          exchange.source = call.source;
          exchange.results = {names.AddValue(std::move(value))};
          made.push_back({windows.dims, windows.fill, exchange.results[0]});
          it = made.end() - 1;
          instructions.push_back(std::move(exchange));
          node_of.push_back(ir::kNoNode);
        }
        call.operands[k] = it->windowed;
      }
    }
    instructions.push_back(std::move(call));
    node_of.push_back(id);
  }
  program.instructions = std::move(instructions);
  lowering.node_of = std::move(node_of);
  return absl::OkStatus();
}

}  // namespace spmd::partition
