// SPDX-License-Identifier: Apache-2.0
// Which values of the tape a program has to compute: those that some Buffer still holds.
//
// Thread safety: guarded by the session's lock.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

struct Live {
  std::vector<OutputSpec> outputs;
  std::vector<absl::Status> lost;  // by value; empty where none is
  bool IsLost(TapeId id) const { return !lost.empty() && !lost[id].ok(); }
};

// Calls visit(buffer, before) for the Buffers that hold a value of the tape.
template <typename Visit>
void ForEachBuffer(const Tape& tape, Visit&& visit) {
  tape.bindings().ForEach([&](Buffer& buffer, TapeId before) {
    const ValuePtr& value = buffer.value();
    if (value != nullptr && value->tape == tape.number()) visit(buffer, before);
  });
}

// Finds the values that some Buffer still holds, in order of binding, each once; their Value
// objects are made here. Results of the autograd task `ended` (a number of the tape's) are
// gradients to which the next micro-step adds. Requires: `tape` is the session's tape.
inline constexpr int kNoTask = -1;
Live FindLive(const Tape& tape, int ended = kNoTask);

}  // namespace spmd::trace
