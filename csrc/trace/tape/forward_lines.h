// SPDX-License-Identifier: Apache-2.0
// The user's line of each record. In a backward pass it is the line of the forward op whose
// gradient is computed.
//
// Autograd numbers its nodes per thread and runs later ones first, but nodes that a backward pass
// makes must come after all earlier nodes of any thread. (An op written into a view is a node of
// its own and a part of another node, which has to run before it.)
//
// Thread safety: guarded by the session's lock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace spmd::trace {

class ForwardLines {
 public:
  // The line of the op that is recorded now. `current_line` gives the line at which Python is.
  std::string Current(std::string (*current_line)());
  // Advances this thread's sequence number past all that other threads have used.
  void CatchUpWithOtherThreads();

  size_t size() const { return line_of_.size(); }

 private:
  absl::flat_hash_map<uint64_t, std::string> line_of_;  // by the sequence number of autograd's node
  uint64_t latest_ = 0;                                 // of autograd's nodes, on any thread
};

}  // namespace spmd::trace
