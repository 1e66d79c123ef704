// SPDX-License-Identifier: Apache-2.0
// Corrects the results of Meta kernels to what the CPU's kernels give, where these run the ops.
// Meta describes the kernels of other devices where these differ, and some of its kernels, which
// are written in other ops, give other strides.
//
//   x [2,3,4] with strides (1,2,6): native_batch_norm on Meta (1,2,6), on the CPU (12,4,1)
//
// torch_spmd/device/fake_tensors.py does the same for FakeTensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

// While an object lives, Meta kernels written in Python that ask for which device they answer
// (torch._meta_registrations.device_hint) answer for the CPU; without it they assume CUDA.
class MetaAnswersForCpu {
 public:
  MetaAnswersForCpu() : before_(on_) { on_ = true; }
  ~MetaAnswersForCpu() { on_ = before_; }
  MetaAnswersForCpu(const MetaAnswersForCpu&) = delete;
  MetaAnswersForCpu& operator=(const MetaAnswersForCpu&) = delete;
  // True if one lives on this thread.
  static bool IsOn() { return on_; }

 private:
  bool before_;
  static thread_local bool on_;
};

// Corrects `result`, Meta's answer for a call of `op` with `args`, which follow the schema of `op`.
// Where a GPU runs the ops, only what it gives, too.
void CorrectAsOnCpu(const OpInfo& op, const std::vector<c10::IValue>& args, Inference& result);

// The strides of a dense tensor whose dimensions have the same order in memory as those of `t`.
Dims StridesInOrderOf(const at::Tensor& t);

}  // namespace spmd::trace
