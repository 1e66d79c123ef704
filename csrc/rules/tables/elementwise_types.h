// SPDX-License-Identifier: Apache-2.0
// Result types of element-wise ops that differ from plain promotion (csrc/rules/promotion.h).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

using TypesOrStatus = absl::StatusOr<std::vector<TensorType>>;

TypesOrStatus FloatTypes(const OpCall& call);  // promoted; integers and booleans become f32
TypesOrStatus BoolTypes(const OpCall& call);   // comparisons and predicates
TypesOrStatus FirstTypes(const OpCall& call);  // the element type of operand 0
TypesOrStatus RealTypes(const OpCall& call);   // abs: complex becomes real
TypesOrStatus AngleTypes(const OpCall& call);  // as RealTypes, and integers and booleans become f32
TypesOrStatus WhereTypes(const OpCall& call);  // promoted, without the condition
TypesOrStatus CastTypes(const OpCall& call);   // attribute dtype; none: that of operand 0
TypesOrStatus ComplexTypes(const OpCall& call);  // from real and imaginary parts

}  // namespace spmd::rules
