// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/optimizer_step.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace spmd::trace {

void NoteLostSteps(OptimizerSteps& steps, const std::vector<StepPart>& parts) {
  for (const StepPart& part : parts) {
    if (!part.lost || std::exchange(part.step->counted, true)) continue;
    ++steps.lost;
    ++steps.untold;
    std::erase_if(steps.open, [&](const StepPart& open) { return open.step == part.step; });
  }
}

absl::Status SayLostSteps(const absl::Status& status, int steps) {
  if (status.ok() || steps == 0) return status;
  const std::string count = absl::StrCat(steps, steps == 1 ? " step" : " steps");
  const char* const between = absl::EndsWith(status.message(), ".") ? " " : "; ";
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), between, count,
                   " of the optimizer did not happen: its tensors are as before, and its counters "
                   "and those of a schedule are ",
                   count, " ahead of them"));
}

}  // namespace spmd::trace
