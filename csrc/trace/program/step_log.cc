// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/step_log.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace spmd::trace {

int64_t StepLog::Ran(const ProgramPtr& program, absl::Span<const int64_t> inputs) {
  // If no optimizer ever steps, the oldest runs are forgotten.
  constexpr size_t kMost = 4096;
  Run run{++last_, program, keep_all_ ? program : nullptr, {}};
  for (const int64_t number : inputs) {
    if (number > step_end_) run.inputs.push_back(number);
  }
  std::sort(run.inputs.begin(), run.inputs.end());
  run.inputs.erase(std::unique(run.inputs.begin(), run.inputs.end()), run.inputs.end());
  since_.push_back(std::move(run));
  if (since_.size() > kMost && !keep_all_) since_.pop_front();
  return last_;
}

void StepLog::EndStep() {
  if (since_.empty()) return;
  absl::flat_hash_set<int64_t> needed = {since_.back().number};
  last_step_.clear();
  lost_ = 0;
  for (auto run = since_.rbegin(); run != since_.rend(); ++run) {
    if (run->number <= step_begin_ && !needed.contains(run->number)) continue;
    needed.insert(run->inputs.begin(), run->inputs.end());
    if (ProgramPtr program = run->program.lock()) {
      last_step_.push_back(std::move(program));
    } else {
      ++lost_;
    }
  }
  // Runs that have been forgotten altogether.
  for (const int64_t number : needed) lost_ += number < since_.front().number ? 1 : 0;
  std::reverse(last_step_.begin(), last_step_.end());
  since_.clear();
  step_end_ = last_;
  step_begin_ = kNone;
}

}  // namespace spmd::trace
