// SPDX-License-Identifier: Apache-2.0
// The beginnings of recordings that programs were compiled from. A tape that begins like one of
// them follows it (csrc/trace/tape/tape.h).
//
// A beginning is found by its key and then compared event by event: two beginnings may have one
// key. A tape without events is expected to become the recording that came after the same one the
// last time.
//
// Thread safety: guarded by the session's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/tape/recording.h"

namespace spmd::trace {

class Prefixes {
 public:
  // The recording whose first events are those of `begun`, which has the key `key`; null if there
  // is none.
  RecordingPtr Find(const Hash128& key, const Recording& begun);
  // Adds the beginnings of `recording`: those that end with a record.
  void Add(const RecordingPtr& recording);

  // Notes that a tape has become `recording`, after one of the same thread became `last`.
  void Ended(const RecordingPtr& last, const RecordingPtr& recording);
  // What the tape after `last` may become; null if that is not known.
  RecordingPtr Expected(const RecordingPtr& last) const;

  size_t size() const { return known_.size(); }
  // Drops all beginnings; keys keep only so many bits from now on, for tests.
  void SetKeyBits(int bits) {
    known_.clear();
    after_.clear();
    key_bits_ = bits;
  }

 private:
  struct Beginning {
    std::weak_ptr<const Recording> recording;
    int32_t events;
  };
  absl::flat_hash_map<Hash128, Beginning> known_;
  absl::flat_hash_map<const Recording*, std::weak_ptr<const Recording>> after_;
  size_t most_ = size_t{1} << 14;  // then those without a recording are dropped
  int key_bits_ = 128;
};

}  // namespace spmd::trace
