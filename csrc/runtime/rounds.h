// SPDX-License-Identifier: Apache-2.0
// What the processes of a job agree on while they run a program.
//
//   agree   that all run the same program with the same numbers, before the first byte is sent
//   run     a process whose op fails goes on sending what it owes, as zeros
//   vote    after the last step that may fail on values, and as late as none has taken its donated
//           arguments: if one has failed, none takes them, and all have the same error
//   commit  donated arguments are taken
//   vote    at the end: if one has failed since (it has no memory), all have the same error, and
//           what was donated is lost in all
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "c10/core/Scalar.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

// Errors: FailedPrecondition, in all processes, if the numbers differ.
absl::Status AgreeToRun(Peers& peers, uint64_t program, const std::vector<c10::Scalar>& scalars);

// `mine` is how this process fared, until step `step` if it failed. Returns OK if all are well, and
// otherwise, in all processes, the error of the one that failed in the earliest step.
absl::Status Vote(Peers& peers, const absl::Status& mine, int step);

// The error with the process that has met it.
absl::Status InProcess(const absl::Status& status, int rank);

// Ends what all processes do, because this one was interrupted.
void FailAsInterrupted(Peers& peers);

}  // namespace spmd::runtime
