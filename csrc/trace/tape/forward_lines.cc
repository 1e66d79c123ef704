// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/forward_lines.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace spmd::trace {

std::string ForwardLines::Current(std::string (*current_line)()) {
  constexpr size_t kMost = 1 << 16;
  if (const auto node = torch::autograd::get_current_node(); node != nullptr) {
    const auto it = line_of_.find(node->sequence_nr());
    return it == line_of_.end() ? "" : it->second;
  }
  std::string line = current_line();
  if (line.empty()) return line;
  if (line_of_.size() > kMost) line_of_.clear();
  // The op's autograd node was made just before the op arrived here.
  line_of_[at::sequence_number::peek() - 1] = line;
  return line;
}

void ForwardLines::CatchUpWithOtherThreads() {
  if (!c10::GradMode::is_enabled()) return;
  while (at::sequence_number::peek() < latest_) at::sequence_number::get_and_increment();
  latest_ = at::sequence_number::peek();
}

}  // namespace spmd::trace
