// SPDX-License-Identifier: Apache-2.0
// Interprets calls in which an operand or a result is complex.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/reference/interpreter.h"

namespace spmd::reference {

// The arguments of InterpretOp.
struct ComplexCall {
  absl::string_view op;
  absl::Span<const Literal* const> operands;
  absl::Span<const ir::OperandGroup> groups;
  const Attributes& attributes;
  absl::Span<const TensorType> results;

  absl::Status Unknown() const;
};

// Errors: as InterpretOp.
absl::StatusOr<std::vector<Literal>> InterpretComplex(const ComplexCall& call);

}  // namespace spmd::reference
