// SPDX-License-Identifier: Apache-2.0
// Whether the ops of a graph are given what they need: what ir::Verify, which knows no op, cannot
// say.
#pragma once

#include "absl/status/status.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// A call of an op with a rule: operands, attributes and results are those of the op's schema
// (csrc/rules/signature.h); the results have the types that the rule infers, where it does; the
// factors of every dimension multiply to its size. What the rule's functions are given after that
// they can read.
// Errors: InvalidArgument naming the call and what does not fit.
absl::Status CheckCall(const Rule& rule, const OpCall& call);

// CheckCall of every node whose op has a rule. Requires: ir::Verify(graph).
// Errors: InvalidArgument naming the node.
absl::Status Verify(const ir::Graph& graph);

}  // namespace spmd::rules
