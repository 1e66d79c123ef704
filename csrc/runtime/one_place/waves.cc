// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/waves.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "csrc/util/dims.h"

namespace spmd::runtime {

Schedule ScheduleInTurns(int64_t devices, int64_t as_one, bool where_it_pays,
                         absl::FunctionRef<Schedule(int64_t)> in_waves_of,
                         absl::FunctionRef<int64_t(const Schedule&)> peak_bytes) {
  // To double the number of waves must save this part of the peak without turns, and this many
  // bytes.
  constexpr int64_t kLeastPart = 8;
  constexpr int64_t kLeastSaved = int64_t{1} << 20;
  const int64_t least =
      std::max<int64_t>(at::get_num_threads() * as_one, CeilDiv(devices, kMostWaves));
  if (least >= devices || !where_it_pays) return in_waves_of(least);
  Schedule schedule = in_waves_of(devices);
  const int64_t without = peak_bytes(schedule);
  int64_t peak = without;
  for (int64_t wave = devices; wave > least;) {
    wave = std::max(CeilDiv(wave, 2), least);
    Schedule turns = in_waves_of(wave);
    const int64_t now = peak_bytes(turns);
    if (peak - now < std::max(without / kLeastPart, kLeastSaved)) break;
    schedule = std::move(turns);
    peak = now;
  }
  return schedule;
}

}  // namespace spmd::runtime
