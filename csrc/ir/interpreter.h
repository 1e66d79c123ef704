// SPDX-License-Identifier: Apache-2.0
// A reference interpreter for the closed list of core ops: naive loops over doubles on tiny shapes.
// It exists so that passes can be checked for meaning without LibTorch: run a graph before and
// after a pass and compare. Not a runtime.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {

// Row-major; integers and booleans are held exactly as doubles. `data` are the real parts of
// complex numbers; only these have others.
struct Literal {
  TensorType type;
  std::vector<double> data;
  std::vector<double> imaginary = {};
};

// A literal has at most this many elements, and all literals of a graph together.
inline constexpr int64_t kMaxLiteralElements = int64_t{1} << 24;

// Results are rounded to the value's dtype (floats to nearest even, integers towards zero).
// spmd::random and spmd::dropout draw from a generator of the interpreter's own: like the runtime's
// it depends on (seed, counter, global index) only, but the numbers are others.
// Errors: Unimplemented naming the op that the interpreter does not know; InvalidArgument where an
// op's result has not the type that the graph says, operands do not fit or are missing.
absl::StatusOr<std::vector<Literal>> Interpret(const Graph& graph, absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars = {});

// Errors: InvalidArgument where the graph's values have more elements than are interpreted.
absl::Status CheckSize(const Graph& graph);

// One op, as Interpret runs it per node. Operands are null where absent; attributes hold neither
// run-time scalars nor expressions.
absl::StatusOr<std::vector<Literal>> InterpretOp(absl::string_view op,
                                                 absl::Span<const Literal* const> operands,
                                                 absl::Span<const OperandGroup> groups,
                                                 const Attributes& attributes,
                                                 absl::Span<const TensorType> results);

// `attributes` with each `$k` replaced by its value.
// Errors: InvalidArgument when there is no value for a slot.
absl::StatusOr<Attributes> WithScalars(const Attributes& attributes,
                                       absl::Span<const ScalarKind> kinds,
                                       absl::Span<const double> values);

// A made-up tensor, the same for the same seed: numbers in (-1, 1), as both parts of complex ones,
// integers in [0, 4), both bools.
Literal SampleLiteral(const TensorType& type, uint64_t seed);

// `value` as a `dtype` holds it; as either part of one that is complex.
double RoundTo(DType dtype, double value);

}  // namespace spmd::ir
