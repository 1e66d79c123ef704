// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {

absl::Status BatchIndices(ir::Graph& graph) {
  const auto form_of = [](const ir::Node& node) {
    const rules::Rule* rule = rules::Find(node.op);
    return rule == nullptr ? nullptr : rule->decompose_batch;
  };
  const auto takes_indices = [&](const ir::Node& node) { return form_of(node) != nullptr; };
  if (std::none_of(graph.nodes().begin(), graph.nodes().end(), takes_indices)) {
    return absl::OkStatus();
  }
  SPMD_ASSIGN_OR_RETURN(graph,
                        Rewrite(graph,
                                [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                                    absl::Span<const ir::ValueId> operands)
                                    -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                                  const rules::DecomposeFn form = form_of(old.node(id));
                                  if (form == nullptr) return std::nullopt;
                                  SPMD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> values,
                                                        form(builder, old, old.node(id), operands));
                                  if (values.empty()) return std::nullopt;
                                  return values;
                                }));
  return absl::OkStatus();
}

}  // namespace spmd::partition
