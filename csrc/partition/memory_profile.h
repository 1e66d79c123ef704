// SPDX-License-Identifier: Apache-2.0
// What a program holds at each of its instructions, if no call overwrites an operand and every
// input that an output replaces is given up.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::partition {

// The first and the last instruction at which a value is held; none if first > last. `last` is the
// number of instructions if the value is held to the end.
struct Life {
  int first = 0;
  int last = -1;
};
// By value.
// Requires: no frees.
std::vector<Life> LivesOf(const program::Program& program);

// Thread safety: immutable.
class MemoryProfile {
 public:
  // Requires: no frees. Takes time linear in instructions, operands and values.
  explicit MemoryProfile(const program::Program& program);

  int64_t peak() const { return most_[1]; }
  // The most that is held at any of the instructions [first, last]. Takes logarithmic time.
  // Requires: 0 <= first <= last < the number of instructions.
  int64_t Most(int first, int last) const;

 private:
  size_t leaves_;
  std::vector<int64_t> most_;  // a tree of maxima: node k has the children 2k and 2k + 1
};

}  // namespace spmd::partition
