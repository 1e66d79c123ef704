// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers. On the device a step is one change: parameters and moments are all those
// after it or, if an op that it depends on fails, all those before it.
//
//   a step begins
//   ops are recorded       they belong to the step: all their results are computed, or none
//   the step is over       what is pending is cut; the step belongs to the run of its program
//   the run fails          the device's values are those before it (csrc/trace/run/recover.h), and
//                          the error says that the step did not happen
//
// What Python has counted meanwhile stays: the optimizer's own counters and its schedule are ahead
// of the tensors by the steps that did not happen.
//
// A program that is cut while a step is under way (by an optimizer that reads a value) is a part of
// the step. If the first part fails, the whole step is lost. If a later part fails, what the
// earlier parts have written stays.
//
// A step that an exception leaves is never over: no hook is called then. What it has recorded
// stays, as ops that belong to no step (LeaveSteps in csrc/trace/run/lost_steps.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace spmd::trace {

struct OptimizerStep {
  const void* optimizer = nullptr;  // only compared
  const void* call = nullptr;       // the Python call that makes the step; only compared
  bool written = false;  // a part that was cut while the step was under way wrote tensors
  bool counted = false;  // among the lost ones
};
using OptimizerStepPtr = std::shared_ptr<OptimizerStep>;

// The records of one tape that belong to a step.
struct StepPart {
  OptimizerStepPtr step;
  int64_t begin = 0, end = 0;
  bool under_way = false;  // the step went on after its program was cut
  bool is_first = true;    // no earlier part has written tensors
  bool lost = false;       // its program failed, and the step is lost with it

  bool Has(int64_t record) const { return begin <= record && record < end; }
};

// Thread safety: guarded by the session's lock.
struct OptimizerSteps {
  std::vector<StepPart> open;      // under way, outermost first
  std::vector<StepPart> recorded;  // over, and pending on the tape
  int64_t lost = 0;                // so many did not happen
  int untold = 0;                  // of these, so many no error has told of
};

// Counts the lost steps among `parts`, each once, and ends those under way.
void NoteLostSteps(OptimizerSteps& steps, const std::vector<StepPart>& parts);

// Adds to the message that `steps` steps did not happen, if there are any.
absl::Status SayLostSteps(const absl::Status& status, int steps);

}  // namespace spmd::trace
