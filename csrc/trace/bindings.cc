// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/bindings.h"

#include <pthread.h>

#include <algorithm>

namespace spmd::trace {

namespace {

// Of the tapes that there are: one, or two while the first becomes a program. Guarded by the mutex.
std::vector<Bindings*>& All() {
  static auto* all = new std::vector<Bindings*>;
  return *all;
}

}  // namespace

std::mutex& Bindings::Mutex() {
  static std::mutex* const mutex = [] {
    // A child whose parent forked while another thread was in here drops tensors, too.
    pthread_atfork([] { Mutex().lock(); }, [] { Mutex().unlock(); }, [] { Mutex().unlock(); });
    return new std::mutex;
  }();
  return *mutex;
}

Bindings::Bindings(uint64_t tape) : tape_(tape) {
  const std::lock_guard<std::mutex> lock(Mutex());
  All().push_back(this);
}

Bindings::~Bindings() {
  const std::lock_guard<std::mutex> lock(Mutex());
  All().erase(std::find(All().begin(), All().end(), this));
}

void Bindings::Reserve(size_t count) {
  const std::lock_guard<std::mutex> lock(Mutex());
  entries_.reserve(count);
}

void Bindings::Add(Buffer& buffer, TapeId before) {
  const std::lock_guard<std::mutex> lock(Mutex());
  entries_.push_back({&buffer, before});
  StrikeLocked(buffer);
  buffer.bound_on = tape_;
  buffer.bound_at = static_cast<uint32_t>(entries_.size()) - 1;
  empty_ = false;
}

void Bindings::Strike(const Buffer& buffer) {
  if (buffer.bound_on == 0) return;
  const std::lock_guard<std::mutex> lock(Mutex());
  StrikeLocked(buffer);
}

void Bindings::StrikeLocked(const Buffer& buffer) {
  for (Bindings* const bindings : All()) {
    if (bindings->tape_ == buffer.bound_on) bindings->entries_[buffer.bound_at].buffer = nullptr;
  }
}

}  // namespace spmd::trace
