// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "csrc/program/program.h"

namespace spmd::program {

// Where each value of a program is computed and where it is read, by index of instruction. A free
// is no use. The facts are those of the program that the constructor was given: it keeps no
// reference, and does not follow later changes.
//
//   0  %1 = call aten::mm(%0, %0)
//   1  %2 = call aten::add.Tensor(%1, %0)      of %0: no maker, two users (0, 1), three uses
//   2  return %2                               of %2: maker 1, no user, one use: the output
class DefUse {
 public:
  explicit DefUse(const Program& program);

  // The instruction that computes the value; -1 for an input.
  int maker(ValueId id) const { return values_[id].maker; }
  // The last instruction that reads the value; -1 if none does.
  int last_user(ValueId id) const { return values_[id].last_user; }
  // How often the value is an operand or an output.
  int uses(ValueId id) const { return values_[id].uses; }
  // The number of the input, among the program's; -1 for other values.
  int input(ValueId id) const { return values_[id].input; }
  bool is_output(ValueId id) const { return values_[id].is_output; }
  // True if the value is needed after the program: an output, or an input that is not donated.
  bool outlives(ValueId id) const { return values_[id].outlives; }

 private:
  struct Facts {
    int maker = -1;
    int last_user = -1;
    int uses = 0;
    int input = -1;
    bool is_output = false;
    bool outlives = false;
  };
  std::vector<Facts> values_;
};

}  // namespace spmd::program
