// SPDX-License-Identifier: Apache-2.0
// Checks that the ops of a graph get the arguments that they need. ir::Verify knows no op and
// cannot check this.
#pragma once

#include "absl/status/status.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// Checks a call of an op with a rule: operands, attributes and results match the op's schema
// (csrc/rules/signature.h), the results have the types that the rule infers (if it infers types),
// and the factors of every dimension multiply to its size. After this check the rule's functions
// can read everything that they ask for.
// Errors: InvalidArgument naming the call and what does not fit.
absl::Status CheckCall(const Rule& rule, const OpCall& call);

// Runs CheckCall on every node whose op has a rule.
// Requires: ir::Verify(graph) passes.
// Errors: InvalidArgument naming the node.
absl::Status Verify(const ir::Graph& graph);

}  // namespace spmd::rules
