// SPDX-License-Identifier: Apache-2.0
// The rule and the factors of every node of a graph, computed once.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/rule.h"

namespace spmd::propagate {

struct NodeFactors {
  const rules::Rule* rule = nullptr;  // null for an op without a rule, which runs replicated
  std::shared_ptr<const rules::OpFactors> factors;
  const rules::OpFactors* operator->() const { return factors.get(); }
  const rules::OpFactors& operator*() const { return *factors; }
};

// The result is indexed by node. Nodes with the same op, attributes and types share one OpFactors.
// Errors: Internal naming the node whose rule does not fit.
absl::StatusOr<std::vector<NodeFactors>> ComputeFactors(const ir::Graph& graph);

}  // namespace spmd::propagate
