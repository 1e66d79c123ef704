// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/in_flight.h"

#include <algorithm>

namespace spmd::trace {

RunInFlight* InFlight::Find(const runtime::PendingRunPtr& run) {
  const auto it =
      std::find_if(runs.begin(), runs.end(), [&](const RunInFlight& f) { return f.run == run; });
  return it == runs.end() ? nullptr : &*it;
}

}  // namespace spmd::trace
