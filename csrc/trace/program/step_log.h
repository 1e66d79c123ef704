// SPDX-License-Identifier: Apache-2.0
// Finds the programs of one optimizer step: the one that ended in the step, and those since the
// previous step whose results it needed, directly or through each other, such as forward passes
// that ended when a loss was read, and micro-steps. Evaluations between two steps belong to none.
//
//   StepLog log;
//   const int64_t run = log.Ran(program, {numbers of the runs that made its inputs});
//   log.EndStep();                       // the optimizer has stepped
//   log.last_step()                      // in order of runs; a program occurs as often as it ran
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace spmd::trace {

struct CompiledProgram;
using ProgramPtr = std::shared_ptr<const CompiledProgram>;

class StepLog {
 public:
  // Notes a run and returns its number, from 1 on. `inputs` are the numbers of the runs that made
  // its inputs, 0 for none.
  int64_t Ran(const ProgramPtr& program, absl::Span<const int64_t> inputs);
  // Notes that the last run ends a step.
  void EndStep();

  const std::vector<ProgramPtr>& last_step() const { return last_step_; }
  // The number of runs since the last step; 0 if the last run ended it.
  int64_t runs_since() const { return last_ - step_end_; }

 private:
  struct Run {
    int64_t number;
    std::weak_ptr<const CompiledProgram> program;  // the cache may drop programs
    std::vector<int64_t> inputs;                   // those since the step before
  };

  int64_t last_ = 0;      // number of the last run
  int64_t step_end_ = 0;  // number of the last run that ended a step
  std::deque<Run> since_;
  std::vector<ProgramPtr> last_step_;
};

}  // namespace spmd::trace
