// SPDX-License-Identifier: Apache-2.0
// One op on the tape. It is functional, and its tensors are numbers of values.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "csrc/ir/graph.h"
#include "csrc/trace/op/op_info.h"
#include "csrc/trace/value/tape_id.h"

namespace spmd::trace {

// Invariants: `args` follows the op's schema. Tensors and lists of tensors in it are None; they are
// in `operands` (flattened, in schema order; kNoId if absent) and `groups` (one per list argument).
struct Record {
  const OpInfo* op = nullptr;
  std::vector<c10::IValue> args;
  absl::InlinedVector<TapeId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
  TapeId first_result = 0;
  int num_results = 0;   // flattened
  int first_scalar = 0;  // run-time scalars: args for which IsRuntimeValue is true, flattened
  int num_scalars = 0;
  bool updates_first = false;  // for an in-place op: the result may overwrite operand 0
  int task = 0;         // 0: not in a backward pass; else the number of the pass on this tape
  int32_t source = -1;  // index into Tape::sources(), or -1
};

}  // namespace spmd::trace
