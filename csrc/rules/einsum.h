// SPDX-License-Identifier: Apache-2.0
// The parsed text of an einsum rule, and the factors that it gives a call.
//
//   "... k, n k, +n? -> ... n"   linear
//   "(a b) c -> a (b c)"         compound dimensions, major first
//
// The grammar is described in csrc/rules/rule.h.
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

struct EinsumDim {
  absl::InlinedVector<int, 2> names;  // indices into EinsumPattern::names; empty for "1"
  bool ellipsis = false;              // "..."
};

struct EinsumTensor {
  std::vector<EinsumDim> dims;
  int ellipsis = -1;  // which of `dims` is "...", or -1
  bool added = false;
  bool optional = false;
  bool same = false;  // results only

  int named_rank() const { return static_cast<int>(dims.size()) - (ellipsis >= 0 ? 1 : 0); }
};

struct EinsumPattern {
  std::vector<std::string> names;  // in order of appearance
  std::vector<bool> whole;         // in brackets anywhere
  std::vector<ReduceKind> reduce;  // sum by default
  std::vector<EinsumTensor> operands;
  std::vector<EinsumTensor> results;
};

// Errors: InvalidArgument with the text and the offending word.
absl::StatusOr<EinsumPattern> ParseEinsum(absl::string_view text);

// Errors: InvalidArgument when a rank or a size does not fit the text.
absl::StatusOr<OpFactors> EinsumFactors(const EinsumPattern& pattern, const OpCall& call);

// Result types of a call of an op with an einsum rule: the sizes follow from the text, the element
// type is the one to which PyTorch promotes the operands.
absl::StatusOr<std::vector<TensorType>> EinsumTypes(const OpCall& call);

}  // namespace spmd::rules
