// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/def_use.h"

namespace spmd::program {

DefUse::DefUse(const Program& program) : values_(program.values.size()) {
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    Facts& input = values_[program.inputs[k].value];
    input.input = static_cast<int>(k);
    input.outlives = !program.inputs[k].donated;
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code == OpCode::kFree) continue;
    for (ValueId id : instruction.operands) {
      if (id == kNoValue) continue;
      values_[id].last_user = static_cast<int>(i);
      ++values_[id].uses;
    }
    for (ValueId id : instruction.results) values_[id].maker = static_cast<int>(i);
  }
  for (const Output& output : program.outputs) {
    Facts& value = values_[output.value];
    value.is_output = value.outlives = true;
    ++value.uses;
  }
}

}  // namespace spmd::program
