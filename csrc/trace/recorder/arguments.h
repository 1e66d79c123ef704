// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of one call into the form in which a record has them.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "csrc/trace/tape/record.h"

namespace spmd::trace {

struct SessionState;

using Args = std::vector<c10::IValue>;

// An argument that may be None.
inline std::optional<at::Tensor> OptionalTensor(const c10::IValue& arg) {
  return arg.toOptional<at::Tensor>();
}
inline at::Tensor TensorOrUndefined(const c10::IValue& arg) {
  return arg.isTensor() ? arg.toTensor() : at::Tensor();
}

struct Arguments {
  const OpInfo* op = nullptr;     // the op asked for, or its Scalar overload
  std::vector<c10::IValue> args;  // None in the place of tensors
  absl::InlinedVector<TapeId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
};

// Reads every tensor in `args`, which follow the schema of `op`. 0-dim CPU tensors become run-time
// scalars; CPU indices are uploaded.
// Throws: c10::Error "Expected all tensors to be on the same device…" for any other tensor in
// `args` that is not on the device.
Arguments ReadArguments(SessionState& state, const OpInfo& op, std::vector<c10::IValue> args);

// The arguments of `to`, taken by name from `args`, those of `from`. Arguments that `from` does not
// have get their defaults.
std::vector<c10::IValue> Rearrange(const OpInfo& from, const std::vector<c10::IValue>& args,
                                   const OpInfo& to);

// The arguments of `op`. PopArguments takes them off the stack, PeekArguments leaves them there.
std::vector<c10::IValue> PopArguments(const OpInfo& op, torch::jit::Stack* stack);
std::vector<c10::IValue> PeekArguments(const OpInfo& op, const torch::jit::Stack* stack);

// Reads one operand, a tensor of the device or a 0-dim CPU tensor. `like` is the element type that
// a wrapped number takes.
TapeId ReadOperand(SessionState& state, const at::Tensor& tensor,
                   std::optional<at::ScalarType> like = std::nullopt);

}  // namespace spmd::trace
