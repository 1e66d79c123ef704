// SPDX-License-Identifier: Apache-2.0
// How many devices of one place take a turn together (csrc/runtime/schedule.h).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "csrc/runtime/schedule.h"

namespace spmd::runtime {

// With this many waves, one wave's intermediates are an eighth of all, little compared with what
// the devices share.
inline constexpr int64_t kMostWaves = 8;

// The schedule of `devices` devices in as few waves as save memory, because twice as many waves
// read all parameters and gradients twice as often. A wave has work for all cores; `as_one` devices
// of it run as one. If not `where_it_pays`, there are as many waves as that allows, up to
// kMostWaves. `in_waves_of` makes the schedule for a number of devices per wave, `peak_bytes` is
// what a schedule's tiles take at the peak.
Schedule ScheduleInTurns(int64_t devices, int64_t as_one, bool where_it_pays,
                         absl::FunctionRef<Schedule(int64_t)> in_waves_of,
                         absl::FunctionRef<int64_t(const Schedule&)> peak_bytes);

}  // namespace spmd::runtime
