// SPDX-License-Identifier: Apache-2.0
// Which ops have a start (csrc/trace/tape/starts.h), and which argument it is. The list is in
// number_arguments.cc, beside the other numbers that are passed when a program runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"

namespace spmd::trace {

// What an op does from its start on. The dimension is the argument before the start.
enum class StartForm : uint8_t {
  kReadOne,     // reads one index
  kReadLength,  // reads as many as the argument after the start says
  kRead,        // reads up to the argument after the start, which is the end; then comes the step
  kWriteOne,    // writes operand 1 there
  kWrite,
  kGradientOne,  // puts operand 0 there, among zeros
  kGradient,
  kRoll,
  kLowerTriangle,
  kUpperTriangle,
};

struct StartArgument {
  std::string_view op;
  StartForm form;
  int number;  // the argument
};

// Sorted by op.
absl::Span<const StartArgument> StartArgumentsOfOps();

}  // namespace spmd::trace
