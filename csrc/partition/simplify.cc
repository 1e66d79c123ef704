// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/partition/unmerge.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

// Nodes with equal keys compute the same.
struct NodeKey {
  std::string op;
  std::vector<ir::ValueId> operands;
  std::vector<int> group_sizes;
  Attributes attributes;
  int64_t task;

  friend bool operator==(const NodeKey& a, const NodeKey& b) {
    return a.op == b.op && a.operands == b.operands && a.group_sizes == b.group_sizes &&
           a.attributes == b.attributes && a.task == b.task;
  }
  template <typename H>
  friend H AbslHashValue(H h, const NodeKey& k) {
    return H::combine(std::move(h), k.op, k.operands, k.attributes, k.task);
  }
};

}  // namespace

absl::Status Simplify(ir::Graph& graph) {
  absl::flat_hash_map<NodeKey, std::vector<ir::ValueId>> seen;
  const std::vector<bool> live = LiveNodes(graph);
  Unmerger unmerger;
  SPMD_ASSIGN_OR_RETURN(
      ir::Graph simplified,
      Rewrite(
          graph,
          [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
              absl::Span<const ir::ValueId> operands)
              -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
            const ir::Node& node = old.node(id);
            const rules::Rule* rule = rules::Find(node.op);
            if (rule != nullptr && rule->combine != nullptr) {
              const std::optional<ir::ValueId> combined =
                  rule->combine(builder, operands, node.attributes);
              if (combined) return std::vector<ir::ValueId>{*combined};
            }
            if (auto unmerged = unmerger.Replace(builder, old, node, operands)) {
              return *std::move(unmerged);
            }
            // A node without operands costs nothing; shared, it would tie the layouts of its users
            // together.
            if (rule == nullptr || rule->random || operands.empty()) return std::nullopt;
            for (int r = 0; r < node.num_results; ++r) {
              if (old.value(node.first_result + r).annotation) return std::nullopt;
            }
            NodeKey key{
                node.op, {operands.begin(), operands.end()}, {}, node.attributes, node.task};
            for (const ir::OperandGroup& g : node.groups) key.group_sizes.push_back(g.size);
            // The copy's results are the next values. Equal nodes that come later use them.
            std::vector<ir::ValueId> next;
            for (int r = 0; r < node.num_results; ++r) {
              next.push_back(builder.graph().num_values() + r);
            }
            auto [it, inserted] = seen.try_emplace(std::move(key), next);
            if (inserted) return std::nullopt;
            return it->second;
          },
          live));
  // Removes what fusing and merging left without users.
  const std::vector<bool> used = LiveNodes(simplified);
  if (std::all_of(used.begin(), used.end(), [](bool u) { return u; })) {
    graph = std::move(simplified);
    return absl::OkStatus();
  }
  SPMD_ASSIGN_OR_RETURN(
      graph,
      Rewrite(
          simplified,
          [](rules::Builder&, const ir::Graph&, ir::NodeId, absl::Span<const ir::ValueId>)
              -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> { return std::nullopt; },
          used));
  return absl::OkStatus();
}

}  // namespace spmd::partition
