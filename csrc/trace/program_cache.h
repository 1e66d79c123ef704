// SPDX-License-Identifier: Apache-2.0
// Compiled programs by the keys of the tapes they came from. All together take no more bytes than a
// bound: least recently used ones go first.
//
// Liveness is not in the key: a program fits a tape when its results include all that is alive.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/hash.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/session.h"

namespace spmd::trace {

struct ProgramPart {
  std::vector<int> inputs;  // of the whole program, by number
  std::shared_ptr<CompiledProgram> program;
  std::vector<LayoutPtr> layouts;  // of the outputs
};

struct CachedProgram {
  Hash128 key;
  std::vector<OutputSpec> outputs;  // in order of the program's
  std::vector<LayoutPtr> layouts;   // of the outputs
  std::vector<int> inputs;          // tape input number of each program input
  std::vector<int> starts;          // records whose starts are passed at run time, in slot order
  // Records that have starts, ascending: those that are passed, needed or not; those that are not.
  std::vector<int> late_starts, known_starts;
  std::shared_ptr<CompiledProgram> program;
  RecordingPtr recording;  // of the tape it was compiled from
  // Of the heap, with all that it is made of.
  int64_t HeapBytes() const;
  // Parts of it by their outputs, compiled when the whole has failed (csrc/trace/recover.h).
  absl::flat_hash_map<std::vector<int>, std::shared_ptr<ProgramPart>> parts;
  // What the tape looked like, for explain_compile.
  std::vector<const OpInfo*> ops;
  std::vector<uint64_t> prefixes;
};
using CachedProgramPtr = std::shared_ptr<CachedProgram>;

class ProgramCache {
 public:
  explicit ProgramCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Programs for `key`, newest first.
  std::vector<CachedProgramPtr> Find(const Hash128& key);
  // The newest one stays, however large.
  void Insert(CachedProgramPtr program);
  // The program holds more than when it was inserted.
  void CountAgain(const CachedProgram& program);
  // The program has its graph and reasons. Those that got theirs before the last few lose them.
  void NoteExplained(const std::shared_ptr<CompiledProgram>& program);
  void SetMostBytes(int64_t bytes);
  // A tape with this loose key that was compiled before, its starts known; or null.
  RecordingPtr SeenLoose(const Hash128& loose) const;
  void NoteLoose(const Hash128& loose, const RecordingPtr& recording);
  // What sets the tape apart from the cached program most like it.
  std::string Difference(const Tape& tape) const;
  void Clear();
  // All of them, last used first.
  const std::list<CachedProgramPtr>& recent() const { return recent_; }
  int64_t bytes() const { return bytes_; }
  size_t num_explained() const { return explained_.size(); }

 private:
  struct Entry {
    std::list<CachedProgramPtr>::iterator place;  // among `recent_`
    int64_t bytes = 0;
  };
  void DropOldest();

  int64_t most_bytes_;
  int64_t bytes_ = 0;                   // of all entries
  std::list<CachedProgramPtr> recent_;  // front: last used
  absl::flat_hash_map<const CachedProgram*, Entry> entries_;
  absl::flat_hash_map<Hash128, std::vector<CachedProgramPtr>> by_key_;
  absl::flat_hash_map<Hash128, std::weak_ptr<const Recording>> loose_;
  std::deque<std::weak_ptr<CompiledProgram>> explained_;
};

}  // namespace spmd::trace
