// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/program/program.h"

namespace spmd::partition {

// The names of the first results of the instructions, in order.
inline std::string FirstResults(const program::Program& program) {
  std::string names;
  for (const auto& instruction : program.instructions) {
    absl::StrAppend(&names, names.empty() ? "" : " ", program.values[instruction.results[0]].name);
  }
  return names;
}

}  // namespace spmd::partition
