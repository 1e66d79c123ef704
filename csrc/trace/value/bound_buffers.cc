// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/bound_buffers.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace spmd::trace {

namespace {

// The Bindings of all tapes: one for each thread, and one while a tape becomes a program. Guarded
// by Lock().
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
  ++changes_;
  StrikeLocked(buffer);
  buffer.bound_on = tape_;
  buffer.bound_at = static_cast<uint32_t>(entries_.size()) - 1;
  empty_ = false;
}

void Bindings::Strike(const Buffer& buffer) {
  if (buffer.bound_on == 0) return;
  void (*all_ended)() = nullptr;
  {
    const std::lock_guard<SpinLock> lock(Lock());
    all_ended = StrikeLocked(buffer);
  }
  if (all_ended != nullptr) all_ended();
}

void (*Bindings::StrikeLocked(const Buffer& buffer))() {
  for (Bindings* const bindings : All()) {
    if (bindings->tape_ != buffer.bound_on) continue;
    Entry& entry = bindings->entries_[buffer.bound_at];
    entry.buffer = nullptr;
    ++bindings->changes_;
    if (!std::exchange(entry.watched, false)) return nullptr;
    return --bindings->num_watched_ == 0 ? bindings->all_ended_ : nullptr;
  }
  return nullptr;
}

void Bindings::Watch(absl::Span<const TapeId> indices, void (*all_ended)()) {
  const std::lock_guard<SpinLock> lock(Lock());
  all_ended_ = all_ended;
  for (const TapeId index : indices) {
    Entry& entry = entries_[static_cast<size_t>(index)];
    if (entry.buffer == nullptr || std::exchange(entry.watched, true)) continue;
    ++num_watched_;
  }
}

int64_t Bindings::changes() const {
  const std::lock_guard<SpinLock> lock(Lock());
  return changes_;
}

int64_t Bindings::num_watched() const {
  const std::lock_guard<SpinLock> lock(Lock());
  return num_watched_;
}

}  // namespace spmd::trace
