// SPDX-License-Identifier: Apache-2.0
// All rules: the built-in tables, listed explicitly, and the user's.
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
// Adds a user's rule.
// Errors: AlreadyExists for an op that has one; InvalidArgument for bad text.
absl::Status Register(Rule rule);
// True if the rule of `op` was registered by the user.
bool IsUsers(absl::string_view op);
// The names of all ops that have a rule, sorted.
std::vector<std::string> AllOps();

// The families, each defined in tables/<family>.cc. The registry checks that no op occurs twice.
std::vector<Rule> ElementwiseRules();
std::vector<Rule> MatmulRules();     // mm bmm addmm linear, their backward, attention
std::vector<Rule> ReductionRules();  // sum mean amax argmax norm softmax …
std::vector<Rule> NormalizationRules();
std::vector<Rule> LossRules();           // mse, binary cross entropy … and their gradients
std::vector<Rule> ViewRules();           // view permute slice select cat stack expand pad …
std::vector<Rule> IndexingRules();       // embedding gather scatter index nll …
std::vector<Rule> LinearAlgebraRules();  // batches of matrices, Fourier transforms
std::vector<Rule> SamplingRules();     // grid_sample, unfold, unpooling: images through coordinates
std::vector<Rule> ConvolutionRules();  // convolution, pooling, up-sampling and their gradients
std::vector<Rule> CreationRules();     // full arange random …
std::vector<Rule> OptimizerRules();    // what foreach and fused optimizers split into

}  // namespace spmd::rules
