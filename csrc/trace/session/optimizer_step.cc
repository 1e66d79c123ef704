// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/optimizer_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spmd::trace {

void Close(OptimizerStep& step) {
  if (std::exchange(step.closed, true)) return;
  for (const HostChangesPtr& changes : step.changes) changes->Close();
}

int UndoHostChanges(const std::vector<OptimizerStepPtr>& steps) {
  int undone = 0;
  for (const OptimizerStepPtr& step : steps) {
    if (std::exchange(step->undone, true)) continue;
    ++undone;
    Close(*step);
    for (auto changes = step->changes.rbegin(); changes != step->changes.rend(); ++changes) {
      (*changes)->Undo();
    }
  }
  return undone;
}

std::string AboutUndoneSteps(int steps) {
  if (steps < 2) return "";
  return absl::StrCat("; ", steps,
                      " steps of the optimizer did not happen: the one that needed it, and those "
                      "that were recorded before it failed");
}

}  // namespace spmd::trace
