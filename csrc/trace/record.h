// SPDX-License-Identifier: Apache-2.0
// One op on the tape: functional, its tensors by number.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "csrc/ir/graph.h"
#include "csrc/trace/op_info.h"

namespace spmd::trace {

// Number of a value on the tape.
using TapeId = int32_t;
inline constexpr TapeId kNoId = -1;

// Invariants: `args` follows the op's schema; tensors and lists of tensors in it are None, and
// stand in `operands` (flattened, in schema order; kNoId where absent) and `groups` (one per list
// argument).
struct Record {
  const OpInfo* op = nullptr;
  std::vector<c10::IValue> args;
  absl::InlinedVector<TapeId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
  TapeId first_result = 0;
  int num_results = 0;   // flattened
  int first_scalar = 0;  // run-time scalars: of args that IsRuntimeValue, flattened
  int num_scalars = 0;
  bool updates_first = false;  // from an in-place op: the result may overwrite operand 0
  int task = 0;         // 0: not in a backward pass; else the number of the pass on this tape
  int32_t source = -1;  // index into Tape::sources(), or -1
};

}  // namespace spmd::trace
