// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/bound_buffers.h"

#include <pthread.h>

#include <algorithm>

namespace spmd::trace {

namespace {

// The Bindings of all tapes: one, or two while the first becomes a program. Guarded by Lock().
std::vector<Bindings*>& All() {
  static auto* all = new std::vector<Bindings*>;
  return *all;
}

}  // namespace

SpinLock& Bindings::Lock() {
  static SpinLock* const lock = [] {
    // A forked child drops tensors, too, although another thread of the parent may have held the
    // lock.
    pthread_atfork([] { Lock().lock(); }, [] { Lock().unlock(); }, [] { Lock().unlock(); });
    return new SpinLock;
  }();
  return *lock;
}

Bindings::Bindings(uint64_t tape) : tape_(tape) {
  const std::lock_guard<SpinLock> lock(Lock());
  All().push_back(this);
}

Bindings::~Bindings() {
  const std::lock_guard<SpinLock> lock(Lock());
  All().erase(std::find(All().begin(), All().end(), this));
}

void Bindings::Reserve(size_t count) {
  const std::lock_guard<SpinLock> lock(Lock());
  entries_.reserve(count);
}

void Bindings::Add(Buffer& buffer, TapeId before) {
  const std::lock_guard<SpinLock> lock(Lock());
  entries_.push_back({&buffer, before});
  StrikeLocked(buffer);
  buffer.bound_on = tape_;
  buffer.bound_at = static_cast<uint32_t>(entries_.size()) - 1;
  empty_ = false;
}

void Bindings::Strike(const Buffer& buffer) {
  if (buffer.bound_on == 0) return;
  const std::lock_guard<SpinLock> lock(Lock());
  StrikeLocked(buffer);
}

void Bindings::StrikeLocked(const Buffer& buffer) {
  for (Bindings* const bindings : All()) {
    if (bindings->tape_ == buffer.bound_on) bindings->entries_[buffer.bound_at].buffer = nullptr;
  }
}

}  // namespace spmd::trace
