// SPDX-License-Identifier: Apache-2.0
// A reference interpreter for the closed list of core ops: naive loops over doubles on tiny shapes.
// It lets passes be checked for meaning without LibTorch: run a graph before and after a pass and
// compare. It is not a runtime.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"

namespace spmd::reference {

// A tensor in row-major order. Integers and booleans are held exactly as doubles. `data` has the
// real parts of complex numbers; `imaginary` is empty for other types.
struct Literal {
  TensorType type;
  std::vector<double> data;
  std::vector<double> imaginary = {};
};

// The largest number of elements of one literal, and of all literals of a graph together.
inline constexpr int64_t kMaxLiteralElements = int64_t{1} << 24;

// In a manual region (csrc/ir/border.h) each device's values are computed by themselves. An input
// that is each device's own is the same on all of them; an output that is has those of the devices
// along a new first dimension.
//
// Results are rounded to the value's dtype (floats to nearest even, integers towards zero).
// spmd::random and spmd::dropout use a generator of the interpreter's own. Like the runtime's it
// depends on (seed, counter, global index) only, but it gives other numbers.
// Errors: Unimplemented naming an op that the interpreter does not know; InvalidArgument where an
// op's result does not have the type that the graph says, or operands are missing or do not fit.
absl::StatusOr<std::vector<Literal>> Interpret(const ir::Graph& graph,
                                               absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars = {});

// Errors: InvalidArgument where the graph's values together exceed kMaxLiteralElements.
absl::Status CheckSize(const ir::Graph& graph);

// Runs one op, as Interpret does per node. Absent operands are null; attributes hold neither
// run-time scalars nor expressions.
absl::StatusOr<std::vector<Literal>> InterpretOp(absl::string_view op,
                                                 absl::Span<const Literal* const> operands,
                                                 absl::Span<const ir::OperandGroup> groups,
                                                 const Attributes& attributes,
                                                 absl::Span<const TensorType> results);

// `attributes` with each `$k` replaced by its value.
// Errors: InvalidArgument when there is no value for a slot.
absl::StatusOr<Attributes> WithScalars(const Attributes& attributes,
                                       absl::Span<const ir::ScalarKind> kinds,
                                       absl::Span<const double> values);

// A made-up tensor that depends on `type` and `seed` only: numbers in (-1, 1) (both parts of
// complex ones), integers in [0, 4), both booleans.
Literal SampleLiteral(const TensorType& type, uint64_t seed);

// `value` rounded as a `dtype` stores it; for a complex type, as either part is stored.
double RoundTo(DType dtype, double value);

}  // namespace spmd::reference
