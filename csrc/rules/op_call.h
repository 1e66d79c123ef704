// SPDX-License-Identifier: Apache-2.0
// One op with its attributes and types: what a rule is asked about. Independent of any graph, so
// that rules are tested and used without one.
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "csrc/ir/graph.h"

namespace spmd::rules {

struct OpCall {
  std::string op;
  // Null for an absent optional operand. The pointees outlive the call.
  absl::InlinedVector<const TensorType*, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
  const Attributes* attributes = nullptr;
  absl::InlinedVector<TensorType, 2> results;  // empty while they are being inferred

  static OpCall Of(const ir::Graph& graph, const ir::Node& node);

  const TensorType& operand(int i) const { return *operands[i]; }
  bool has(int i) const { return i < static_cast<int>(operands.size()) && operands[i] != nullptr; }
  const Attributes& attrs() const { return *attributes; }
  // A dim attribute, negative ones counted from `rank`.
  int64_t Dim(absl::string_view name, int rank) const;
  std::string ToString() const;  // "aten::mm(f32[2,3], f32[3,4])"
};

}  // namespace spmd::rules
