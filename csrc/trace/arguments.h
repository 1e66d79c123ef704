// SPDX-License-Identifier: Apache-2.0
// The arguments of one call, as the tape wants them.
#pragma once

#include <optional>
#include <vector>

#include "csrc/trace/record.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

using Args = std::vector<c10::IValue>;

// An argument that may be None.
inline std::optional<at::Tensor> OptionalTensor(const c10::IValue& arg) {
  return arg.toOptional<at::Tensor>();
}
inline at::Tensor TensorOrUndefined(const c10::IValue& arg) {
  return arg.isTensor() ? arg.toTensor() : at::Tensor();
}

struct Arguments {
  const OpInfo* op = nullptr;     // may have become the Scalar overload of the one asked for
  std::vector<c10::IValue> args;  // tensors None
  absl::InlinedVector<TapeId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
};

// Reads every tensor in `args` (of `op`'s schema). 0-dim CPU tensors become run-time scalars; CPU
// indices are uploaded.
// Throws: c10::Error "Expected all tensors to be on the same device…" for other tensors not ours.
Arguments ReadArguments(Session::State& state, const OpInfo& op, std::vector<c10::IValue> args);

// Arguments of `to` out of those of `from`, by name; defaults for what `from` does not have.
std::vector<c10::IValue> Rearrange(const OpInfo& from, const std::vector<c10::IValue>& args,
                                   const OpInfo& to);

// One operand: a tensor of ours, or a 0-dim CPU tensor. `like`: for wrapped numbers, the element
// type they take.
TapeId ReadOperand(Session::State& state, const at::Tensor& tensor,
                   std::optional<at::ScalarType> like = std::nullopt);

}  // namespace spmd::trace
