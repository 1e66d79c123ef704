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
  // While `keep` is true, programs are kept until the step after next ends, whether or not the
  // cache of programs drops them, and no run is forgotten: for planning, where a step of many
  // layers may be a thousand programs and one is too large for the cache.
  void KeepAll(bool keep) { keep_all_ = keep; }

  const std::vector<ProgramPtr>& last_step() const { return last_step_; }
  // Runs of the last step that are not among `last_step`, since their programs were dropped.
  int64_t lost() const { return lost_; }
  // The number of runs since the last step; 0 if the last run ended it.
  int64_t runs_since() const { return last_ - step_end_; }

 private:
  struct Run {
    int64_t number;
    std::weak_ptr<const CompiledProgram> program;  // the cache may drop programs
    ProgramPtr kept;                               // null unless all are kept
    std::vector<int64_t> inputs;                   // those since the step before
  };

  int64_t last_ = 0;      // number of the last run
  int64_t step_end_ = 0;  // number of the last run that ended a step
  std::deque<Run> since_;
  std::vector<ProgramPtr> last_step_;
  int64_t lost_ = 0;
  bool keep_all_ = false;
};

}  // namespace spmd::trace
