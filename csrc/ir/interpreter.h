// SPDX-License-Identifier: Apache-2.0
// A reference interpreter for the closed list of core ops: naive loops over doubles on tiny shapes.
// It exists so that passes can be checked for meaning without LibTorch: run a graph before and after
// a pass and compare. Not a runtime.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {

// Row-major; integers and booleans are held exactly as doubles.
struct Literal {
  TensorType type;
  std::vector<double> data;
};

// Results are rounded to the value's dtype (f32, integers, bool).
// Errors: Unimplemented naming the op that the interpreter does not know.
absl::StatusOr<std::vector<Literal>> Interpret(const Graph& graph,
                                               absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars = {});

}  // namespace spmd::ir
