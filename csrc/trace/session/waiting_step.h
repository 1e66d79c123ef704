// SPDX-License-Identifier: Apache-2.0
// An optimizer step whose program waits until its gradients are dropped
// (csrc/trace/run/end_of_step.h).
#pragma once

#include <memory>
#include <vector>

#include "csrc/trace/value/tape_id.h"

namespace spmd::trace {

// What is known of the loop in which an optimizer steps.
struct GradientHabit {
  // True if gradients are still there when the device is used next after a step.
  bool kept = false;
};
using GradientHabitPtr = std::shared_ptr<GradientHabit>;

// The step whose records the session's tape ends with.
struct WaitingStep {
  std::vector<TapeId> gradients;  // their Buffers, by number among the bindings; ascending
  GradientHabitPtr habit;
};

}  // namespace spmd::trace
