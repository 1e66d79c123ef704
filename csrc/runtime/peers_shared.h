// SPDX-License-Identifier: Apache-2.0
// Processes of one host that exchange through memory.
//
// Each process has a segment of memory that the others map. It writes what it sends into its own
// segment, and the others read from there what is for them. Counters in the segments say whose
// bytes are ready and who has read them; a process that waits for one sleeps on it (futex).
// A segment has no name (memfd): nothing is left behind, however a process ends.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "csrc/runtime/job_watch.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

// Collective. Peers that exchange through memory, if all processes are on one host and can map each
// other's segments; null otherwise, in all of them. They find out through `remote`. `wanted` false:
// this process does not want to. The other arguments are those of MakeC10dPeers.
// Errors: those of Peers::Exchange.
absl::StatusOr<std::unique_ptr<Peers>> ShareMemory(Peers& remote, bool wanted,
                                                   std::shared_ptr<JobWatch> watch,
                                                   std::string channel,
                                                   std::chrono::milliseconds timeout);

}  // namespace spmd::runtime
