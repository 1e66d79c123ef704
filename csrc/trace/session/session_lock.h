// SPDX-License-Identifier: Apache-2.0
// How functions that are called from PyTorch and Python enter the session.
#pragma once

#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// Holds the session's lock. Releases the GIL while it waits for the lock. If the calling thread
// holds the lock already, what it holds is handed on (csrc/trace/session/session_mutex.h). Nothing
// else gives the session's state, so a function that takes a SessionState& is called with the lock
// held.
class SessionLock {
 public:
  SessionLock() : state_(TheSession()), takes_(!session_mutex.IsMine()) {
    if (!takes_) return;
    if (!session_mutex.TryLock()) Wait();
    EnterThread(state_, state_.threads);
  }
  ~SessionLock() {
    if (takes_) session_mutex.Unlock();
  }
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;
  SessionState* operator->() { return &state_; }
  SessionState& operator*() { return state_; }

 private:
  // The one session of the process, which is never destroyed.
  static SessionState& TheSession();
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
