// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/micro_steps.h"

#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/tape/filled_leaf.h"

namespace spmd::trace {

void MicroSteps::Note(int64_t task, bool updates_first) {
  if (task < 0 || ending_task_ == task) return;
  if (last_task_ != task) {
    last_task_ = task;
    returns_ = compat::CapturesGradients();
    if (!returns_) ++passes_since_step_;
  }
  if (returns_) return;
  if (!accumulates_) accumulates_ = updates_first && FilledLeaf().defined();
  if (accumulates_) ending_task_ = due_ = task;
}

void MicroSteps::OptimizerStepped() {
  if (passes_since_step_ == 1) accumulates_ = false;
  passes_since_step_ = 0;
}

}  // namespace spmd::trace
