// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {

absl::Status Legalize(ir::Graph& graph) {
  const auto to_rewrite = [](const ir::Node& node) {
    const rules::Rule* rule = rules::Find(node.op);
    return rule != nullptr && rule->decompose_always ? rule : nullptr;
  };
  // A decomposition may use an op that has one itself; the depth is limited.
  constexpr int kMaxDepth = 8;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    if (std::none_of(graph.nodes().begin(), graph.nodes().end(), to_rewrite)) {
      return absl::OkStatus();
    }
    bool changed = false;
    SPMD_ASSIGN_OR_RETURN(ir::Graph next,
                          Rewrite(graph,
                                  [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                                      absl::Span<const ir::ValueId> operands)
                                      -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                                    const ir::Node& node = old.node(id);
                                    const rules::Rule* rule = to_rewrite(node);
                                    if (rule == nullptr) return std::nullopt;
                                    SPMD_ASSIGN_OR_RETURN(
                                        std::vector<ir::ValueId> values,
                                        rules::Decomposed(*rule, builder, old, node, operands));
                                    if (values.empty()) return std::nullopt;
                                    changed = true;
                                    return values;
                                  }));
    if (!changed) return absl::OkStatus();
    graph = std::move(next);
  }
  return absl::InternalError("decompositions do not end");
}

}  // namespace spmd::partition
