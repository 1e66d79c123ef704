// SPDX-License-Identifier: Apache-2.0
// FITTED constants: the part of the peak FLOP/s that large matrix products reach on a chip. Each is
// fitted to the step times of published runs by `python -m benchmarks.published --fit`. They absorb
// what the model of time leaves out. No other figure of a machine is fitted.
#pragma once

#include "absl/strings/string_view.h"

namespace spmd::machine {

// The constant of a TPU generation ("v4") or a GPU model ("H100"); 1 where nothing is fitted.
double FittedEfficiency(absl::string_view chip);

}  // namespace spmd::machine
