// SPDX-License-Identifier: Apache-2.0
#include "absl/container/flat_hash_map.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/partition/unmerge.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

// Two nodes with equal keys compute the same.
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

// The gradient of cross entropy in one step. Taken apart, the gradient of log_softmax sums the
// gradient of nll over the classes; that sum is known without looking at them, which saves a
// reduction where the classes are cut and a tensor of tokens × classes everywhere.
//
//   _log_softmax_backward_data(nll_dinput(g, t, w, s), logp, dim=1)  ->  cross_entropy_dinput(...)
std::optional<ir::ValueId> FuseCrossEntropy(rules::Builder& builder, const ir::Graph& old,
                                            const ir::Node& node,
                                            absl::Span<const ir::ValueId> operands) {
  if (node.op != "aten::_log_softmax_backward_data") return std::nullopt;
  const ir::NodeId producer = builder.graph().value(operands[0]).producer;
  if (producer == ir::kNoNode) return std::nullopt;
  const ir::Node nll = builder.graph().node(producer);
  const TensorType& type = old.type(node.first_result);
  const int64_t dim = node.attributes.GetInt("dim");
  if (nll.op != "spmd::nll_dinput" || type.rank() != 2 || (dim != 1 && dim != -1) ||
      builder.type(operands[1]) != type || builder.type(operands[0]) != type) {
    return std::nullopt;
  }
  return builder.Call(
      "spmd::cross_entropy_dinput",
      {nll.operands[0], operands[1], nll.operands[1], nll.operands[2], nll.operands[3]},
      {{"ignore_index", nll.attributes.GetInt("ignore_index")}, {"first_class", int64_t{0}}});
}

}  // namespace

absl::StatusOr<ir::Graph> Simplify(const ir::Graph& graph) {
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
            if (std::optional<ir::ValueId> fused = FuseCrossEntropy(builder, old, node, operands)) {
              return std::vector<ir::ValueId>{*fused};
            }
            if (std::optional<ir::ValueId> unmerged =
                    unmerger.Replace(builder, old, node, operands)) {
              return std::vector<ir::ValueId>{*unmerged};
            }
            const rules::Rule* rule = rules::Find(node.op);
            // What is made from nothing is free; shared, it would tie the layouts of its users.
            if (rule == nullptr || rule->random || operands.empty()) return std::nullopt;
            for (int r = 0; r < node.num_results; ++r) {
              if (old.value(node.first_result + r).annotation) return std::nullopt;
            }
            NodeKey key{
                node.op, {operands.begin(), operands.end()}, {}, node.attributes, node.task};
            for (const ir::OperandGroup& g : node.groups) key.group_sizes.push_back(g.size);
            // The copy's results are the next values; an equal node found later uses these.
            std::vector<ir::ValueId> next;
            for (int r = 0; r < node.num_results; ++r) {
              next.push_back(builder.graph().num_values() + r);
            }
            auto [it, inserted] = seen.try_emplace(std::move(key), next);
            if (inserted) return std::nullopt;
            return it->second;
          },
          live));
  // What fusing and merging left without users.
  return Rewrite(
      simplified,
      [](rules::Builder&, const ir::Graph&, ir::NodeId, absl::Span<const ir::ValueId>)
          -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> { return std::nullopt; },
      LiveNodes(simplified));
}

}  // namespace spmd::partition
