// SPDX-License-Identifier: Apache-2.0
// The processes among which the devices are dealt (docs/design/0037-processes.md). All of them run
// the same script.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "csrc/runtime/backend.h"
#include "csrc/trace/session/python_hooks.h"

namespace spmd::trace {

struct SessionState;

// Thread safety: guarded by the session's lock.
struct Processes {
  bool looked_for = false;
  absl::Status not_joined;  // why this process could not join its job
  JobConnection job;        // null peers if there is one process
  int64_t round = 0;        // what they have agreed on so far (csrc/trace/run/agree.h)
  bool left = false;        // the script has ended
  std::string description;  // for describe_devices

  bool several() const { return job.script != nullptr; }
  int rank() const;
  int size() const;
};

// Looks for other processes, once, and deals the devices of `backend` to them. `backend` is
// replaced by one with a fixed number of devices. Errors: those of joining; InvalidArgument if the
// devices cannot be dealt in equal parts, or if the processes differ in what steers compiling.
absl::Status JoinProcesses(SessionState& state, std::shared_ptr<runtime::Backend>& backend);

// Ends what the processes do together with this error, because this one cannot go on. Does nothing
// with one process.
void FailJob(const SessionState& state, const absl::Status& why);

}  // namespace spmd::trace
