// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/threads.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// The threads that have ended and whose work is still there. Never destroyed, since threads end
// after everything else.
struct Ended {
  std::mutex mutex;
  std::vector<uint64_t> threads;
};
Ended& TheEnded() {
  static auto* const ended = new Ended;
  return *ended;
}

struct Thread {
  Thread() {
    static std::atomic<uint64_t> last{0};
    internal::thread_number = ++last;
  }
  ~Thread() {
    const std::lock_guard<std::mutex> lock(TheEnded().mutex);
    TheEnded().threads.push_back(internal::thread_number);
  }
};

bool HasPending(const Tape& tape) {
  bool found = false;
  tape.bindings().ForEach([&](const Buffer& buffer, TapeId) { found |= buffer.pending(); });
  return found;
}

void DropEnded(OtherThreads& threads) {
  const std::lock_guard<std::mutex> lock(TheEnded().mutex);
  std::erase_if(TheEnded().threads, [&](uint64_t thread) {
    const auto it = threads.work.find(thread);
    if (it != threads.work.end() && HasPending(*it->second.tape)) return false;
    if (it != threads.work.end()) threads.work.erase(it);
    return true;
  });
}

}  // namespace

void internal::EnterThread(SessionState& state) {
  static thread_local const Thread thread;
  OtherThreads& threads = state.threads;
  const uint64_t before = std::exchange(threads.holder, thread_number);
  if (before == 0 || before == thread_number) return;
  several_threads = true;
  ThreadWork mine{.tape = nullptr};
  if (const auto it = threads.work.find(thread_number); it != threads.work.end()) {
    mine = std::move(it->second);
    threads.work.erase(it);
  } else {
    mine.tape = NewTape(state);
  }
  threads.work.emplace(before, std::exchange(static_cast<ThreadWork&>(state), std::move(mine)));
  DropEnded(threads);
}

}  // namespace spmd::trace
