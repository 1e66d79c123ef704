// SPDX-License-Identifier: Apache-2.0
// Tapes made by hand, without tensors of the device.
#pragma once

#include <utility>
#include <vector>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

inline TensorType FloatType(Dims dims) { return {DType::kF32, std::move(dims)}; }

inline ValuePtr NewValue(const TensorType& type) { return c10::make_intrusive<Value>(type); }

// Appends an op with one result, whose tensors are `operands` and whose other arguments are `args`
// (None in the places of the tensors).
inline TapeId Call(Tape& tape, const char* op, const std::vector<TapeId>& operands,
                   std::vector<c10::IValue> args, const TensorType& result) {
  Record record;
  record.op = &GetOp(op);
  record.operands.assign(operands.begin(), operands.end());
  record.args = std::move(args);
  return tape.Append(std::move(record), {result});
}

inline TapeId Relu(Tape& tape, TapeId x) {
  return Call(tape, "aten::relu", {x}, {{}}, tape.type(x));
}

inline TapeId Add(Tape& tape, TapeId x, TapeId y, double alpha = 1) {
  return Call(tape, "aten::add.Tensor", {x, y}, {{}, {}, alpha}, tape.type(x));
}

// x[start:start + 2], of a vector
inline TapeId Slice(Tape& tape, TapeId x, int64_t start) {
  return Call(tape, "aten::slice_copy.Tensor", {x}, {{}, 0, start, start + 2, 1}, FloatType({2}));
}

}  // namespace spmd::trace
