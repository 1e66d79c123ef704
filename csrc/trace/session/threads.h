// SPDX-License-Identifier: Apache-2.0
// What each thread records. Threads record by themselves: two that train, or one that prepares
// batches for another one, make the programs that each of them would make alone.
//
//   thread 1:  a b c │ a b c │ …   a tape of its own, cut where this thread reads or steps
//   thread 2:  x y x y …           another one
//   thread 1:  a(y)                y crosses: what only y needs moves to the tape of thread 1
//                                  (csrc/trace/run/join_threads.h)
//
// Thread safety: guarded by the session's lock, except for `SeveralThreads`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/session/optimizer_step.h"
#include "csrc/trace/session/pending_layouts.h"
#include "csrc/trace/tape/micro_steps.h"
#include "csrc/trace/tape/repeats.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

struct SessionState;

struct ThreadWork {
  std::unique_ptr<Tape> tape = std::make_unique<Tape>();
  RecordingPtr last_recording;  // what its last tape has become
  Repeats repeats;
  MicroSteps micro_steps;
  OptimizerSteps optimizer_steps;
  PendingLayouts pending_layouts;
  // Whether the tape ends with a step that waits (csrc/trace/run/end_of_step.h).
  bool step_waits = false;
};

// The work of the threads that do not hold the session.
struct OtherThreads {
  uint64_t holder = 0;  // the thread whose work the session has; 0 before the first one
  absl::flat_hash_map<uint64_t, ThreadWork> work;
};

namespace internal {
inline thread_local uint64_t thread_number = 0;
inline std::atomic<bool> several_threads{false};
void EnterThread(SessionState& state);
}  // namespace internal

// Called with the session's lock: gives the session the work of the calling thread. That of a
// thread that has ended is dropped when nothing holds its values any more.
inline void EnterThread(SessionState& state, const OtherThreads& threads) {
  if (threads.holder == 0 || threads.holder != internal::thread_number) {
    internal::EnterThread(state);
  }
}

// Whether a second thread has ever used the device.
inline bool SeveralThreads() { return internal::several_threads.load(std::memory_order_relaxed); }

}  // namespace spmd::trace
