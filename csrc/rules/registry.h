// SPDX-License-Identifier: Apache-2.0
// All rules: those of the built-in tables (csrc/rules/families.h) and the user's.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// The rule of `op`, or null.
// Thread safety: safe.
const Rule* Find(absl::string_view op);
// What the rule of `op` says about it; the defaults if it has none.
// Thread safety: safe.
const OpFacts& FactsOf(absl::string_view op);
// A built-in op whose result is the product of two matrices of this form; null if there is none.
const Rule* FindProduct(const MatrixProduct& form);
// Adds a user's rule.
// Errors: AlreadyExists for an op that has one; InvalidArgument for bad text.
absl::Status Register(Rule rule);
// True if the rule of `op` was registered by the user.
bool IsUsers(absl::string_view op);
// The names of all ops that have a rule, sorted.
std::vector<std::string> AllOps();

}  // namespace spmd::rules
