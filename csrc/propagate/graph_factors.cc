// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/graph_factors.h"

#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::propagate {
namespace {

// Everything that the factors of a call depend on, and its plans.
struct CallKey {
  std::string op;
  Attributes attributes;
  std::vector<TensorType> types;
  std::vector<bool> present;
  std::vector<int> group_sizes;
  std::vector<AxisMask> manual;  // of the operands, and the number of their grid; or empty

  friend bool operator==(const CallKey& a, const CallKey& b) {
    return a.op == b.op && a.attributes == b.attributes && a.types == b.types &&
           a.present == b.present && a.group_sizes == b.group_sizes && a.manual == b.manual;
  }
  template <typename H>
  friend H AbslHashValue(H h, const CallKey& k) {
    return H::combine(std::move(h), k.op, k.attributes, k.types, k.present, k.group_sizes,
                      k.manual);
  }
};

CallKey KeyOf(const ir::Graph& graph, const ir::Node& node) {
  CallKey key{node.op, node.attributes, {}, {}, {}, {}};
  // Factors do not depend on which slot a run-time number is passed in.
  for (const auto& [name, attr] : node.attributes) {
    if (std::holds_alternative<RuntimeScalar>(attr)) key.attributes.Set(name, RuntimeScalar{});
  }
  for (ir::ValueId v : node.operands) {
    key.present.push_back(v != ir::kNoValue);
    if (v != ir::kNoValue) key.types.push_back(graph.type(v));
  }
  for (int r = 0; r < node.num_results; ++r) {
    key.types.push_back(graph.type(node.first_result + r));
  }
  if (node.manual != 0) {
    key.manual.push_back(static_cast<AxisMask>(node.manual_grid));
    for (ir::ValueId v : node.operands) {
      key.manual.push_back(v == ir::kNoValue ? 0 : graph.value(v).manual);
    }
  }
  for (const ir::OperandGroup& g : node.groups) key.group_sizes.push_back(g.size);
  return key;
}

}  // namespace

absl::StatusOr<std::vector<NodeFactors>> ComputeFactors(const ir::Graph& graph) {
  std::vector<NodeFactors> result(graph.num_nodes());
  absl::flat_hash_map<CallKey, NodeFactors> seen;
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const ir::Node& node = graph.node(id);
    auto [it, inserted] = seen.try_emplace(KeyOf(graph, node));
    if (inserted) {
      const rules::OpCall call = rules::OpCall::Of(graph, node);
      NodeFactors& entry = it->second;
      entry.rule = rules::Find(node.op);
      if (entry.rule == nullptr) {
        entry.factors = std::make_shared<rules::OpFactors>(rules::WholeFactors(call));
      } else {
        absl::StatusOr<rules::OpFactors> factors = rules::FactorsOf(*entry.rule, call);
        if (!factors.ok()) {
          return absl::InternalError(absl::StrCat("the rule of ", node.op, " does not fit ",
                                                  call.ToString(), ": ",
                                                  factors.status().message()));
        }
        entry.factors = std::make_shared<rules::OpFactors>(*std::move(factors));
      }
    }
    result[id] = it->second;
  }
  return result;
}

}  // namespace spmd::propagate
