// SPDX-License-Identifier: Apache-2.0
// Finds the programs of one optimizer step: the one that ended in the step, those that ran while
// the optimizer was in it (one that reads a number for each parameter updates each in a program of
// its own), and those since the previous step whose results they needed, directly or through each
// other, such as forward passes that ended when a loss was read, and micro-steps. Evaluations
// between two steps belong to none.
//
//   StepLog log;
//   const int64_t run = log.Ran(program, {numbers of the runs that made its inputs});
//   log.BeginStep();                     // the optimizer begins; not necessary
//   log.EndStep();                       // the optimizer has stepped
//   log.last_step()                      // in order of runs; a program occurs as often as it ran
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
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
  // Notes that what runs from now on belongs to the step that ends next.
  void BeginStep() { step_begin_ = last_; }
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
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  struct Run {
    int64_t number;
    std::weak_ptr<const CompiledProgram> program;  // the cache may drop programs
    ProgramPtr kept;                               // null unless all are kept
    std::vector<int64_t> inputs;                   // those since the step before
  };

  int64_t last_ = 0;            // number of the last run
  int64_t step_end_ = 0;        // number of the last run that ended a step
  int64_t step_begin_ = kNone;  // number of the last run before an optimizer began
  std::deque<Run> since_;
  std::vector<ProgramPtr> last_step_;
  int64_t lost_ = 0;
  bool keep_all_ = false;
};

}  // namespace spmd::trace
