// SPDX-License-Identifier: Apache-2.0
// The Buffers that a tape has bound to values of its own, in order, as long as they live. Not weak
// references: these would keep the memory of every Buffer of a step until its end, so that each
// next one would be made in memory that no cache holds any more.
//
//   Bindings bindings(tape_number);
//   bindings.Add(buffer, before);    // the tape binds it
//   ...                              // ~Buffer strikes it out, on whichever thread that is
//   bindings.ForEach([](Buffer& buffer, TapeId before) { ... });
//
// Thread safety: `Strike` may be called by any thread; all else is guarded by the session's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/trace/buffer.h"
#include "csrc/util/prefetch.h"

namespace spmd::trace {

// Taken for a few instructions twice with every op, by one thread nearly always: half of what a
// std::mutex takes is its way in and out.
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
  // `before`: the input of the tape that it held when the tape began, if any.
  void Add(Buffer& buffer, TapeId before);
  // Nothing was ever added.
  bool empty() const { return empty_; }
  // visit(Buffer&, before) for those that live, which do not end meanwhile: `visit` must not let go
  // of tensors or wait for anything.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    const std::lock_guard<SpinLock> lock(Lock());
    for (size_t k = 0; k < entries_.size(); ++k) {
      if (k + kAhead < entries_.size()) Prefetch(entries_[k + kAhead].buffer, sizeof(Buffer));
      if (entries_[k].buffer != nullptr) visit(*entries_[k].buffer, entries_[k].before);
    }
  }

  // Takes a Buffer that ends out of where it is, if it was ever bound.
  static void Strike(const Buffer& buffer);

 private:
  static constexpr size_t kAhead = 6;  // Buffers that are asked for in advance
  struct Entry {
    Buffer* buffer;  // null: it has ended
    TapeId before;
  };
  static SpinLock& Lock();
  static void StrikeLocked(const Buffer& buffer);

  const uint64_t tape_;
  bool empty_ = true;
  std::vector<Entry> entries_;  // guarded by Lock()
};

}  // namespace spmd::trace
