// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/rewrite.h"

#include "absl/strings/str_cat.h"
#include "csrc/ir/part.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

absl::Status NotMade(const ir::Graph& graph, ir::ValueId v, absl::string_view user) {
  const ir::Value& value = graph.value(v);
  return absl::InvalidArgumentError(absl::StrCat("%", value.name, " is used by ", user, ", but ",
                                                 graph.node(value.producer).op,
                                                 " does not compute it: its output mask leaves it "
                                                 "out"));
}

}  // namespace

absl::StatusOr<ir::Graph> Rewrite(const ir::Graph& graph, const ReplaceFn& replace,
                                  const std::vector<bool>& keep) {
  ir::Graph result = ir::EmptyLike(graph);
  std::vector<ir::ValueId> value_of(graph.num_values(), ir::kNoValue);
  auto carry = [&](ir::ValueId from, ir::ValueId to) {
    value_of[from] = to;
    const auto& annotation = graph.value(from).annotation;
    if (annotation && !result.value(to).annotation) result.Annotate(to, *annotation);
  };
  for (ir::ValueId v : graph.inputs()) {
    carry(v, result.AddInput(graph.type(v), graph.value(v).name));
  }
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (!keep.empty() && !keep[id]) continue;
    const ir::Node& node = graph.node(id);
    std::vector<ir::ValueId> operands;
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue && value_of[v] == ir::kNoValue) return NotMade(graph, v, node.op);
      operands.push_back(v == ir::kNoValue ? ir::kNoValue : value_of[v]);
    }
    rules::Builder builder(&result, node.task, node.source);
    SPMD_ASSIGN_OR_RETURN(std::optional<std::vector<ir::ValueId>> replaced,
                          replace(builder, graph, id, operands));
    if (replaced) {
      SPMD_CHECK(static_cast<int>(replaced->size()) == node.num_results, node.op, " has ",
                 node.num_results, " results, its replacement ", replaced->size());
      for (int r = 0; r < node.num_results; ++r) {
        if ((*replaced)[r] != ir::kNoValue) carry(node.first_result + r, (*replaced)[r]);
      }
      continue;
    }
    const ir::NodeId copy = ir::CopyNode(graph, node, operands, result);
    for (int r = 0; r < node.num_results; ++r) {
      carry(node.first_result + r, result.result(copy, r));
    }
  }
  for (const ir::Output& output : graph.outputs()) {
    ir::Output copy = output;
    copy.value = value_of[output.value];
    if (copy.value == ir::kNoValue) return NotMade(graph, output.value, "return");
    if (output.becomes != ir::kNoValue) copy.becomes = value_of[output.becomes];
    result.AddOutput(copy);
  }
  return result;
}

std::vector<bool> LiveNodes(const ir::Graph& graph) {
  std::vector<bool> live(graph.num_nodes(), false);
  auto mark = [&](ir::ValueId v) {
    if (v != ir::kNoValue && graph.value(v).producer != ir::kNoNode) {
      live[graph.value(v).producer] = true;
    }
  };
  for (const ir::Output& output : graph.outputs()) mark(output.value);
  for (ir::NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    if (!live[id]) continue;
    for (ir::ValueId v : graph.node(id).operands) mark(v);
  }
  return live;
}

}  // namespace spmd::partition
