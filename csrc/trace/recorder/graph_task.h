// SPDX-License-Identifier: Apache-2.0
// The backward pass in whose name ops are recorded. It is the one that runs, except that the nodes
// of a manual region may run in a pass of their own inside another one
// (csrc/trace/pytorch/region_gradient.h), and are recorded in the name of that.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <optional>

namespace spmd::trace {

// While it lives on a thread, other passes on it are inner ones of the present one.
class InnerPasses {
 public:
  InnerPasses() : before_(outer_) {
    if (!outer_.has_value()) outer_ = torch::autograd::get_current_graph_task_id();
  }
  ~InnerPasses() { outer_ = before_; }
  InnerPasses(const InnerPasses&) = delete;
  static std::optional<int64_t> Outer() { return outer_; }

 private:
  static inline thread_local std::optional<int64_t> outer_;
  const std::optional<int64_t> before_;
};

// The number of the graph task, or -1 outside of backward passes.
inline int64_t GraphTask() {
  const std::optional<int64_t> outer = InnerPasses::Outer();
  return outer.has_value() ? *outer : torch::autograd::get_current_graph_task_id();
}

}  // namespace spmd::trace
