// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/prefixes.h"

#include <algorithm>

#include "csrc/trace/tape/same_records.h"

namespace spmd::trace {

RecordingPtr Prefixes::Find(const Hash128& key, const Recording& begun) {
  const auto it = known_.find(key.FirstBits(key_bits_));
  if (it == known_.end()) return nullptr;
  RecordingPtr recording = it->second.recording.lock();
  if (recording == nullptr) {
    known_.erase(it);
    return nullptr;
  }
  const auto events = static_cast<int32_t>(begun.events.size());
  if (it->second.events != events || !SameBeginning(begun, *recording, events)) return nullptr;
  return recording;
}

void Prefixes::Add(const RecordingPtr& recording) {
  int32_t n = 0;
  for (const Event& event : recording->events) {
    ++n;
    if (event.kind != Event::Kind::kRecord) continue;
    known_[recording->keys[n - 1].FirstBits(key_bits_)] = {recording, n};
  }
  if (known_.size() < most_) return;
  absl::erase_if(known_, [](const auto& known) { return known.second.recording.expired(); });
  most_ = std::max(most_, 2 * known_.size());
}

void Prefixes::Ended(const RecordingPtr& last, const RecordingPtr& recording) {
  constexpr size_t kMost = 1024;
  if (after_.size() >= kMost) after_.clear();  // of programs that never repeat
  if (last != nullptr) after_[last.get()] = recording;
}

RecordingPtr Prefixes::Expected(const RecordingPtr& last) const {
  const auto it = after_.find(last.get());
  return it == after_.end() ? nullptr : it->second.lock();
}

}  // namespace spmd::trace
