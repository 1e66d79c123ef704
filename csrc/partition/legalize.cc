// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {

absl::StatusOr<ir::Graph> Legalize(const ir::Graph& graph) {
  // A decomposition may use an op that has one itself, but not for ever.
  constexpr int kMaxDepth = 8;
  ir::Graph current = graph;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    bool changed = false;
    SPMD_ASSIGN_OR_RETURN(ir::Graph next,
                          Rewrite(current,
                                  [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                                      absl::Span<const ir::ValueId> operands)
                                      -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                                    const ir::Node& node = old.node(id);
                                    const rules::Rule* rule = rules::Find(node.op);
                                    if (rule == nullptr || !rule->decompose_always)
                                      return std::nullopt;
                                    SPMD_ASSIGN_OR_RETURN(
                                        std::vector<ir::ValueId> values,
                                        rule->decompose(builder, old, node, operands));
                                    if (values.empty()) return std::nullopt;
                                    changed = true;
                                    return values;
                                  }));
    if (!changed) return current;
    current = std::move(next);
  }
  return absl::InternalError("decompositions do not end");
}

}  // namespace spmd::partition
