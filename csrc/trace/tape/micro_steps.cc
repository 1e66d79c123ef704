// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/micro_steps.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "absl/algorithm/container.h"
#include "csrc/trace/tape/filled_leaf.h"

namespace spmd::trace {

namespace {

// Whether the running graph task is one of torch.autograd.grad, which captures gradients.
bool ReturnsGradients() {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes != nullptr &&
         absl::c_any_of(*nodes, [](const auto& node) { return node.second.captures_ != nullptr; });
}

}  // namespace

void MicroSteps::Note(int64_t task, bool updates_first) {
  if (task < 0 || ending_task_ == task) return;
  if (last_task_ != task) {
    last_task_ = task;
    returns_ = ReturnsGradients();
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
