// SPDX-License-Identifier: Apache-2.0
// The mutex of the session, which knows the thread that holds it.
//
// A thread that holds the session may come in again from outside: a handler calls other ops through
// PyTorch's dispatcher, an op that runs on host copies may be written in Python and make tensors of
// the device, and so may Python's warnings and handlers of signals. Such an entry must find what
// the thread already holds (`IsMine`) instead of waiting for itself; SessionLock does. Functions of
// csrc/trace never take the lock again; they get the session's state as an argument.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace spmd::trace {

class SessionMutex {
 public:
  bool IsMine() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // Requires, for both: the calling thread does not hold it.
  bool TryLock() {
    if (!mutex_.try_lock()) return false;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void Lock() {
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void Unlock() {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  // Only the owner stores its own id here, so a thread that reads its id holds the mutex.
  std::atomic<std::thread::id> owner_;
};

// Guards the session's state, which only a SessionLock gives.
inline SessionMutex session_mutex;

}  // namespace spmd::trace
