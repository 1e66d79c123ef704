// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers. A step is one change, on the device and on the host: parameters, moments and
// counters are all those after it or, if an op that it depends on fails, all those before it.
//
//   a step begins          its changes on the host are noted from here on
//   ops are recorded       they belong to the step: all their results are computed, or none
//   the step is over       what is pending is cut; the step belongs to the run of its program
//   the run fails          the device's values are those before it (csrc/trace/run/recover.h), and
//   the
//                          host's are put back when the failure is raised, the last step first
//
// A program that is cut while a step is under way (by an optimizer that reads a value) is a part of
// the step. If the first part fails, the whole step is undone. If a later part fails, what the
// earlier parts have written stays, and so do the counters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spmd::trace {

// A change that was made on the host. Thread safety: implementations take Python's lock if they
// need it.
class HostChanges {
 public:
  virtual ~HostChanges() = default;
  // Ends noting: only the changes until now belong to it. Called once.
  virtual void Close() = 0;
  // Restores what was there before, unless it has been changed again since.
  // Requires: Close was called.
  virtual void Undo() = 0;
};
using HostChangesPtr = std::shared_ptr<HostChanges>;

struct OptimizerStep {
  const void* optimizer = nullptr;  // only compared
  std::vector<HostChangesPtr> changes;
  bool closed = false;   // all of `changes` are closed
  bool written = false;  // a part that was cut while the step was under way wrote tensors
  bool undone = false;
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
};

// Ends noting what the step changes.
void Close(OptimizerStep& step);
// Restores what `steps` changed on the host, the last step first. Returns the number of steps that
// were undone.
int UndoHostChanges(const std::vector<OptimizerStepPtr>& steps);

// The end of a message, "…; 3 steps of the optimizer did not happen: …" if there are several.
std::string AboutUndoneSteps(int steps);

}  // namespace spmd::trace
