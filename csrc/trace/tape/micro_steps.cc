// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/micro_steps.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <typeinfo>

#include "csrc/trace/compat/autograd.h"

namespace spmd::trace {

namespace {

bool FillsLeaf() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  const torch::autograd::Node& running = *node;
  return typeid(running) == typeid(torch::autograd::AccumulateGrad);
}

}  // namespace

void MicroSteps::Note(int64_t task, bool updates_first) {
  if (task < 0 || ending_task_ == task) return;
  if (last_task_ != task) {
    last_task_ = task;
    returns_ = compat::CapturesGradients();
    if (!returns_) ++passes_since_step_;
  }
  if (returns_) return;
  if (!accumulates_) accumulates_ = updates_first && FillsLeaf();
  if (accumulates_) ending_task_ = due_ = task;
}

void MicroSteps::OptimizerStepped() {
  if (passes_since_step_ == 1) accumulates_ = false;
  passes_since_step_ = 0;
}

}  // namespace spmd::trace
