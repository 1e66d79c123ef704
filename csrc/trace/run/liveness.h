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

// Calls visit(buffer, before) for the Buffers that hold a value of the tape, numbered `first` or
// later.
template <typename Visit>
void ForEachBuffer(const Tape& tape, Visit&& visit, TapeId first = 0) {
  tape.bindings().ForEach([&](Buffer& buffer, TapeId before) {
    if (buffer.number() != kNoId && buffer.number() < first) return;  // without making its Value
    const ValuePtr& value = buffer.value();
    if (value == nullptr || value->tape != tape.number() || value->id < first) return;
    visit(buffer, before);
  });
}

// How a tape is cut.
inline constexpr int kNoTask = -1;
struct CutOptions {
  // The autograd task (a number of the tape's) that has just ended with gradients to which the next
  // micro-step adds.
  int ended = kNoTask;
  // The Buffer that is read. If this is why the tape is cut, what others hold may never be used.
  const Buffer* asked = nullptr;
  // Values with smaller numbers are left out.
  TapeId first = 0;
};

// Finds the values that some Buffer still holds, in order of binding, each once; their Value
// objects are made here. Requires: `tape` is the session's tape.
Live FindLive(const Tape& tape, const CutOptions& cut = {});

}  // namespace spmd::trace
