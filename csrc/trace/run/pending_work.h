// SPDX-License-Identifier: Apache-2.0
// Marks for the inputs of pending work, found before it is compiled.
//
// An input is *free* if it is data of the host without a mark, and no list. What a program has left
// somewhere is not free: a loop whose first step was marked keeps its shardings without marks.
#pragma once

#include <c10/core/Storage.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/trace/op/hash.h"
#include "csrc/trace/run/traced_graph.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// The free inputs of what is pending. `key` is the same for the same work with the same free
// inputs.
struct PendingWork {
  Hash128 key;
  struct Input {
    int number;  // among the inputs of the tape
    TensorType type;
  };
  std::vector<Input> free;
  std::vector<Mesh> meshes;  // of the marks in it, and of the layouts of inputs that are not free
  bool empty = true;
};
PendingWork FindPendingWork(SessionState& state);

// What is pending as a graph; its inputs are those of the tape, by their numbers. Grid 0 is that of
// `mesh`. Runs nothing. Errors: those of Lower.
absl::StatusOr<TracedGraph> TracePending(SessionState& state, const Mesh& mesh);

// Marks inputs of what is pending, by their numbers, for its program only.
// Errors: InvalidArgument for a number that there is not; those of mark_sharding.
absl::Status MarkPending(SessionState& state, const Mesh& mesh,
                         absl::Span<const std::pair<int, PartitionSpec>> marks);

// Whether pending work reads the data of the host that the storage holds. False for a storage of
// another device.
bool IsReadByPending(const SessionState& state, const c10::Storage& storage);

}  // namespace spmd::trace
