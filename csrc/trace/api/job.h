// SPDX-License-Identifier: Apache-2.0
// What a script does as one of several processes, other than running programs. All functions take
// the session's lock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace spmd::trace {

// What each process says, by rank (csrc/trace/run/agree.h).
absl::StatusOr<std::vector<std::string>> Say(const std::string& mine, const std::string& doing);
// The processes no longer work together, for this reason. Does nothing with one process.
void EndJob(const std::string& why);
// True if the device is in use, and this process found no others to share it with.
bool WorksAlone();

}  // namespace spmd::trace
