// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string>

#include "csrc/cost/move.h"
#include "csrc/partition/at_borders.h"
#include "csrc/partition/gradient_layouts.h"
#include "csrc/partition/passes.h"
#include "csrc/program/new_names.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

program::OpCode ToOpCode(cost::MoveKind kind) {
  switch (kind) {
    case cost::MoveKind::kSlice:
      return program::OpCode::kSlice;
    case cost::MoveKind::kAllGather:
      return program::OpCode::kAllGather;
    case cost::MoveKind::kAllToAll:
      return program::OpCode::kAllToAll;
    case cost::MoveKind::kPermute:
      return program::OpCode::kPermute;
    case cost::MoveKind::kExchange:
      return program::OpCode::kExchange;
    case cost::MoveKind::kAllReduce:
      return program::OpCode::kAllReduce;
    case cost::MoveKind::kReduceScatter:
      return program::OpCode::kReduceScatter;
    case cost::MoveKind::kTerm:
      return program::OpCode::kTerm;
  }
  return program::OpCode::kExchange;
}

class Resharder {
 public:
  explicit Resharder(Lowering& lowering)
      : lowering_(lowering),
        graph_(*lowering.graph),
        program_(lowering.program),
        names_(lowering.program) {}

  void Run() {
    program_.grids = graph_.grids();
    for (size_t g = 0; g < graph_.grids().size(); ++g) {
      program_.grid_names.push_back(graph_.grid_name(static_cast<int>(g)));
    }
    program_.scalars = graph_.scalars();
    program_.sources = graph_.sources();
    layouts_.resize(graph_.num_values());
    for (ir::ValueId v : graph_.inputs()) {
      const ir::Value& value = graph_.value(v);
      const program::ValueId p =
          Define(v, value.annotation->grid, value.annotation->sharding.Closed(), value.name);
      program_.inputs.push_back({p});
    }
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) Call(id);
    Outputs();
  }

 private:
  program::ValueId Define(ir::ValueId v, int grid, Sharding sharding, std::string name = "") {
    program::Value value;
    value.type = graph_.type(v);
    value.grid = grid;
    value.sharding = std::move(sharding);
    value.name = std::move(name);
    const program::ValueId p = names_.AddValue(std::move(value));
    layouts_[v].push_back(p);
    return p;
  }

  void Emit(program::Instruction instruction, ir::NodeId node) {
    program_.instructions.push_back(std::move(instruction));
    lowering_.node_of.push_back(node);
  }

  void Call(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = lowering_.plans[id];
    program::Instruction call;
    call.op = node.op;
    call.groups = node.groups;
    call.attributes = node.attributes;
    call.task = node.task;
    call.source = node.source;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      call.operands.push_back(
          node.operands[k] == ir::kNoValue
              ? program::kNoValue
              : Fetch(node.operands[k], plan.operands[k], plan.grid, node.source));
    }
    if (IsItsOperand(node, plan)) {
      layouts_[node.first_result] = {call.operands[0]};
    } else {
      for (int r = 0; r < node.num_results; ++r) {
        call.results.push_back(Define(node.first_result + r, plan.grid, plan.results[r]));
      }
      if (node.updates >= 0) lowering_.updates[call.results[0]] = node.updates;
      Emit(std::move(call), id);
    }
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      if (!IsConstraint(graph_, v) || MeetsConstraint(graph_, v, plan.results[r], plan.grid)) {
        continue;
      }
      const ir::Annotation& annotation = *graph_.value(v).annotation;
      const program::ValueId p =
          Fetch(v, annotation.sharding.Closed(), annotation.grid, node.source);
      layouts_[v] = {p};  // users start from what the user asked for
    }
  }

  // Whether the operand can stand for the result: it is the same value in the same layout. An
  // output is a value of its own, which the caller may overwrite, so the operand must not be an
  // input or another output.
  bool IsItsOperand(const ir::Node& node, const NodePlan& plan) const {
    if (!rules::FactsOf(node.op).is_operand || node.updates >= 0 ||
        !(plan.operands[0] == plan.results[0])) {
      return false;
    }
    if (!IsOutput(node.first_result)) return true;
    const ir::ValueId v = node.operands[0];
    if (graph_.value(v).producer == ir::kNoNode || IsOutput(v)) return false;
    const ir::Node& maker = graph_.node(graph_.value(v).producer);
    // Two aliases of one value may be outputs.
    return !rules::FactsOf(maker.op).is_operand &&
           std::count_if(graph_.outputs().begin(), graph_.outputs().end(), [&](const auto& output) {
             const ir::NodeId other = graph_.value(output.value).producer;
             return other != ir::kNoNode && rules::FactsOf(graph_.node(other).op).is_operand &&
                    graph_.node(other).operands[0] == v;
           }) == 1;
  }

  bool IsOutput(ir::ValueId v) const {
    return std::any_of(graph_.outputs().begin(), graph_.outputs().end(),
                       [v](const ir::Output& output) { return output.value == v; });
  }

  // The program value that holds graph value v in the layout `wanted`. If there is none yet, v is
  // moved there from the nearest layout.
  program::ValueId Fetch(ir::ValueId v, const Sharding& wanted, int grid, int32_t source) {
    const TensorType& type = graph_.type(v);
    double best = std::numeric_limits<double>::infinity();
    program::ValueId from = program::kNoValue;
    for (program::ValueId p : layouts_[v]) {
      const program::Value& value = program_.values[p];
      if (value.grid == grid && value.sharding == wanted) return p;
      const double seconds = value.grid == grid
                                 ? cost::PlanMove(type, *program_.grids[grid], value.sharding,
                                                  wanted, *lowering_.machine)
                                       .seconds
                                 : 1.0 + (value.sharding.IsUnreduced() ? 1.0 : 0.0);
      if (seconds < best) {
        best = seconds;
        from = p;
      }
    }
    if (program_.values[from].grid != grid) from = ChangeGrid(v, from, wanted, grid, source);
    if (program_.values[from].sharding == wanted) return from;
    const cost::MovePlan plan = cost::PlanMove(
        type, *program_.grids[grid], program_.values[from].sharding, wanted, *lowering_.machine);
    program::ValueId at = from;
    for (const cost::MoveStep& step : plan.steps) {
      program::Instruction move;
      move.code = ToOpCode(step.kind);
      move.operands = {at};
      move.axes = step.axes;
      move.dim = step.dim;
      move.to_dim = step.to_dim;
      move.source = source;
      at = Define(v, grid, step.result);
      move.results = {at};
      Emit(std::move(move), ir::kNoNode);
    }
    return at;
  }

  // Moves a value to another grid: it is reduced on its own grid, then exchanged once.
  program::ValueId ChangeGrid(ir::ValueId v, program::ValueId from, const Sharding& wanted,
                              int grid, int32_t source) {
    if (program_.values[from].sharding.IsUnreduced()) {
      from = Fetch(v, program_.values[from].sharding.Reduced(), program_.values[from].grid, source);
    }
    program::Instruction move;
    move.code = program::OpCode::kExchange;
    move.operands = {from};
    move.source = source;
    const program::ValueId to = Define(v, grid, wanted.Reduced());
    move.results = {to};
    Emit(std::move(move), ir::kNoNode);
    return to;
  }

  void Outputs() {
    const GradientLayouts gradients(graph_);
    for (const ir::Output& output : graph_.outputs()) {
      program::ValueId p;
      const program::ValueId produced = layouts_[output.value].front();
      const bool has_sum = std::any_of(
          layouts_[output.value].begin(), layouts_[output.value].end(),
          [&](program::ValueId q) { return !program_.values[q].sharding.IsUnreduced(); });
      if (LeavesAsTerms(graph_, output, program_.values[produced].sharding,
                        program_.values[produced].grid) &&
          !(output.held && has_sum)) {
        p = produced;
      } else if (const std::optional<Sharding> required = RequiredAtOutput(graph_, output)) {
        p = Fetch(output.value, *required, graph_.value(output.becomes).annotation->grid, -1);
      } else {
        // The layout in which it was produced, or the nearest reduced one that exists; of a
        // gradient its parameter's.
        p = produced;
        if (program_.values[p].sharding.IsUnreduced()) {
          for (program::ValueId q : layouts_[output.value]) {
            if (!program_.values[q].sharding.IsUnreduced()) {
              p = q;
              break;
            }
          }
        }
        const program::Value& from = program_.values[p];
        p = Fetch(output.value, gradients.Leaving(output, from.sharding, from.grid), from.grid, -1);
      }
      int becomes = -1;
      for (size_t i = 0; i < graph_.inputs().size(); ++i) {
        if (graph_.inputs()[i] == output.becomes) becomes = static_cast<int>(i);
      }
      program_.outputs.push_back({p, becomes});
    }
  }

  Lowering& lowering_;
  const ir::Graph& graph_;
  program::Program& program_;
  std::vector<std::vector<program::ValueId>> layouts_;  // by graph value
  program::NewNames names_;
};

}  // namespace

absl::Status Reshard(Lowering& lowering) {
  Resharder(lowering).Run();
  return absl::OkStatus();
}

}  // namespace spmd::partition
