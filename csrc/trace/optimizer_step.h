// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers. A step is one change, on the device and on the host: parameters, moments and
// counters are all those after it or, when an op that it depends on fails, all those before it.
//
//   a step begins          its changes on the host are noted from here on
//   ops are recorded       they belong to the step: their results are made together or not at all
//   the step is over       what is pending is cut; the step goes with the run of its program
//   the run fails          the device's values are those before it (csrc/trace/recover.h), and the
//                          host's are put back when the failure is raised, the last step first
//
// A program that is made while a step is under way (an optimizer that reads a value) is a part of
// it. When the first part fails, the step is undone as a whole; when a later one does, what the
// parts before it have written stays, and so do the counters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spmd::trace {

// What somebody changed on the host. Thread safety: Python's lock is taken where it is needed.
class HostChanges {
 public:
  virtual ~HostChanges() = default;
  // What has changed until now is what is noted. Called once.
  virtual void Close() = 0;
  // Puts back what was there before, unless it has been changed again since. Requires: closed.
  virtual void Undo() = 0;
};
using HostChangesPtr = std::shared_ptr<HostChanges>;

struct OptimizerStep {
  const void* optimizer = nullptr;  // only compared
  std::vector<HostChangesPtr> changes;
  bool closed = false;   // all of `changes` are
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
  bool lost = false;       // its program failed, and took the step with it

  bool Has(int64_t record) const { return begin <= record && record < end; }
};

// Puts back what these steps changed on the host, the last one first. Returns how many there were.
int UndoHostChanges(const std::vector<OptimizerStepPtr>& steps);

// "…; 3 steps of the optimizer did not happen: …" where there are several.
std::string AboutUndoneSteps(int steps);

}  // namespace spmd::trace
