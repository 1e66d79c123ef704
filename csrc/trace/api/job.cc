// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/job.h"

#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

absl::StatusOr<std::vector<std::string>> Say(const std::string& mine, const std::string& doing) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(TheBackend(*lock).status());
  SPMD_RETURN_IF_ERROR(RunWaitingStep(*lock));
  return SayInRound(*lock, mine, doing);
}

void EndJob(const std::string& why) {
  SessionLock lock;
  FailJob(*lock, absl::UnavailableError(why));
}

bool WorksAlone() {
  SessionLock lock;
  return lock->devices.backend != nullptr && lock->processes.looked_for &&
         !lock->processes.several();
}

}  // namespace spmd::trace
