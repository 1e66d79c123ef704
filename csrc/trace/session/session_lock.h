// SPDX-License-Identifier: Apache-2.0
// How functions that are called from PyTorch and Python enter the session.
#pragma once

#include "absl/base/thread_annotations.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Holds the session's lock. Releases the GIL while it waits for the lock. If the calling thread
// holds the lock already, what it holds is handed on (csrc/trace/session/session_mutex.h).
class ABSL_SCOPED_LOCKABLE SessionLock {
 public:
  SessionLock() ABSL_EXCLUSIVE_LOCK_FUNCTION(TheSession().mutex)
      : state_(TheSession()), takes_(!state_.mutex.IsMine()) {
    if (takes_ && !state_.mutex.TryLock()) Wait();
  }
  ~SessionLock() ABSL_UNLOCK_FUNCTION() {
    if (takes_) state_.mutex.Unlock();
  }
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;
  SessionState* operator->() { return &state_; }
  SessionState& operator*() { return state_; }

 private:
  void Wait();

  SessionState& state_;
  const bool takes_;
};

// Releases the GIL for its lifetime, if the thread has it: for waiting for programs.
class GilReleased {
 public:
  explicit GilReleased(SessionState& state) : state_(state) {
    if (state_.hooks.release_gil != nullptr) gil_ = state_.hooks.release_gil();
  }
  ~GilReleased() {
    if (gil_ != nullptr) state_.hooks.reacquire_gil(gil_);
  }
  GilReleased(const GilReleased&) = delete;

 private:
  SessionState& state_;
  void* gil_ = nullptr;
};

}  // namespace spmd::trace
