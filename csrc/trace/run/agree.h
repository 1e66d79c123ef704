// SPDX-License-Identifier: Apache-2.0
// What the scripts of a job's processes agree on before anything is sent, in numbered rounds. A
// round is a cut, a read of a value that several processes hold, something that each process says,
// such as what is wrong with its own part, or the end of the script. Each
// process comes with a ticket of 64 bytes; if the tickets differ, the processes say to each other
// what they do, and all of them raise the same error.
//
// With one process these functions do nothing.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Before a cut: the processes have recorded the same calls with the same numbers and the same data.
// If they hold different results, which depends on when values are collected, all compute what any
// of them holds: `live` becomes the union. `why` is what has cut the tape.
// Errors: FailedPrecondition, the same in all processes, which says where they differ; those of
// Peers::Exchange.
absl::Status AgreeOnCut(SessionState& state, const Tape& tape, Live& live, const std::string& why);

// Before a value is read that this process holds only in part. `why` is what reads it.
absl::Status AgreeOnRead(SessionState& state, const Value& value, const std::string& why);

// What each process says, by rank, in a round of its own. `doing` is what this process does, for
// the messages of others. With one process, what it says itself.
absl::StatusOr<std::vector<std::string>> SayInRound(SessionState& state, const std::string& mine,
                                                    const std::string& doing);

// When the script has ended: all others have ended, too.
absl::Status AgreeToLeave(SessionState& state);

// What this process returns after an exception while the others wait for it: the job ends. That
// there is no memory is returned, as the error of all processes; any other exception is for the
// caller to throw again, and OK is returned. With one process it only returns OK.
absl::Status EndTogether(SessionState& state, const std::exception& e, const std::string& doing);

// A hash of the tensor's data if it is still on the host, where no program has used it: the same
// for the same data. Nothing if it is on the devices or pending.
std::optional<uint64_t> HashOfHostData(SessionState& state, const at::Tensor& tensor);

// The value on the host. If this process does not hold all of it, all processes take part.
absl::StatusOr<at::Tensor> ReadValue(SessionState& state, const Value& value,
                                     const std::string& why);

}  // namespace spmd::trace
