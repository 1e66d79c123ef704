// SPDX-License-Identifier: Apache-2.0
// The Buffers that a tape has bound to its own values, in order, while they live. The entries are
// plain pointers and not weak references: those would keep the memory of every Buffer of a step
// until the step ends, so that each new Buffer would be made in memory that no cache holds.
//
//   Bindings bindings(tape_number);
//   bindings.Add(buffer, before);    // the tape binds it
//   ...                              // ~Buffer removes its entry, on any thread
//   bindings.ForEach([](Buffer& buffer, TapeId before) { ... });
//
// Thread safety: any thread may call `Strike`; everything else is guarded by the session's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// The lock is taken twice per op for a few instructions, nearly always by one thread. Half of the
// cost of a std::mutex would be the calls that lock and unlock it.
class SpinLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class Bindings {
 public:
  explicit Bindings(uint64_t tape);
  ~Bindings();
  Bindings(const Bindings&) = delete;

  void Reserve(size_t count);
  // `before` is the input of the tape that `buffer` held when the tape began, if any.
  void Add(Buffer& buffer, TapeId before);
  // How often a Buffer was added or has ended.
  int64_t changes() const;
  // True if no Buffer was ever added.
  bool empty() const { return empty_; }
  // Calls visit(Buffer&, before) for each Buffer that lives. None can end meanwhile, so `visit`
  // must neither release tensors nor wait for anything.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    const std::lock_guard<SpinLock> lock(Lock());
    for (const Entry& entry : entries_) {
      if (entry.buffer != nullptr) visit(*entry.buffer, entry.before);
    }
  }

  // Removes the entry of `buffer`, which ends, if it was ever bound.
  static void Strike(const Buffer& buffer);

  // Watches the Buffers with these indices. When the last of them has ended, `all_ended` is called
  // by the thread that ended it; null is not called.
  void Watch(absl::Span<const TapeId> indices, void (*all_ended)());
  // How many of the watched Buffers live.
  int64_t num_watched() const;

 private:
  struct Entry {
    Buffer* buffer;  // null if it has ended
    TapeId before;
    bool watched = false;
  };
  static SpinLock& Lock();
  // Returns what is to be called without the lock, or null.
  static void (*StrikeLocked(const Buffer& buffer))();

  const uint64_t tape_;
  bool empty_ = true;
  // Guarded by Lock():
  std::vector<Entry> entries_;
  int64_t num_watched_ = 0;
  int64_t changes_ = 0;
  void (*all_ended_)() = nullptr;
};

}  // namespace spmd::trace
