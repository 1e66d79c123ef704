// SPDX-License-Identifier: Apache-2.0
// Notes calls while they are recorded, so that they can be replayed (csrc/trace/recorder/replay.h).
#pragma once

#include <ATen/core/stack.h>

#include <vector>

#include "csrc/trace/tape/recording.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct SessionState;

// Lives while a call is recorded, and notes the call at the end if it can be replayed. Calls that
// look at values, draw random numbers, take tensors of other devices or cut the tape cannot.
class CallCapture {
 public:
  CallCapture(SessionState& state, const OpInfo& op, const torch::jit::Stack& stack);
  ~CallCapture();
  CallCapture(const CallCapture&) = delete;
  // Called after the call, when its results are on the stack.
  void Finish(const torch::jit::Stack& stack);

 private:
  struct Before {
    at::Tensor tensor;
    Buffer* buffer = nullptr;
    ValuePtr value;
    uint64_t generation = 0;
  };
  bool TakeArgument(const ArgInfo& info, const c10::IValue& arg);
  bool TakeOperand(const c10::IValue& arg);
  bool FinishOperand(size_t k);
  void NoteShared();
  bool FinishEvents();
  bool FinishArguments();
  bool FinishResult(const c10::IValue& result);
  bool FinishTensor(const at::Tensor& tensor);

  SessionState& state_;
  const OpInfo& op_;
  bool active_ = false;
  uint64_t tape_ = 0;
  size_t first_scalar_ = 0;
  size_t stack_below_ = 0;
  std::vector<c10::IValue> args_;
  std::vector<Before> before_;  // by operand
  TracedCall call_;
};

}  // namespace spmd::trace
