// SPDX-License-Identifier: Apache-2.0
// One op with its attributes and types, as rules see it. It does not depend on a graph, so that
// rules can be tested and used without one.
#pragma once

#include <string>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/util/checked_vector.h"

namespace spmd::rules {

// A rule may read anything of a call. Reading something that is missing or has another type throws
// an exception, which FactorsOf and the like turn into an error that names the call
// (rules::Guarded).
struct OpCall {
  std::string op;
  // Null for an absent optional operand. The pointees outlive the call.
  CheckedVector<const TensorType*, 4> operands;
  CheckedVector<ir::OperandGroup, 1> groups;
  const Attributes* attributes = nullptr;
  CheckedVector<TensorType, 2> results;  // empty while they are being inferred

  static OpCall Of(const ir::Graph& graph, const ir::Node& node);

  // Throws if the operand is absent.
  const TensorType& operand(int i) const;
  bool has(int i) const { return i < static_cast<int>(operands.size()) && operands[i] != nullptr; }
  const Attributes& attrs() const { return *attributes; }
  // The attribute `name`, a dim; negative ones count from `rank`. Throws if it is out of range.
  int64_t Dim(absl::string_view name, int rank) const;
  // The same for the dim `dim`; `name` is for the message.
  int64_t Wrapped(int64_t dim, absl::string_view name, int rank) const;
  std::string ToString() const;  // "aten::mm(f32[2,3], f32[3,4])"
};

}  // namespace spmd::rules
