// SPDX-License-Identifier: Apache-2.0
// Compiled programs by the keys of the tapes that they were compiled from. Their total size in
// bytes is bounded: the least recently used ones are dropped first.
//
// Liveness is not in the key: a program fits a tape if its results include every live value.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/partition/earlier_plans.h"
#include "csrc/trace/op/hash.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/tape/tape.h"
#include "csrc/util/options.h"

namespace spmd::trace {

// The options that make another program of the same tape.
struct ProgramOptions {
  bool deduplicate = true, coalesce = false, one_place = true, price_moves = true;
  Turns turns = Turns::kWhereTheyPay;
  int64_t memory_limit = 0;
  friend bool operator==(const ProgramOptions&, const ProgramOptions&) = default;
};

struct CachedProgram {
  Hash128 key;
  std::vector<OutputSpec> outputs;  // in the order of the program's outputs
  std::vector<LayoutPtr> layouts;   // of the outputs
  std::vector<int> inputs;          // tape input number of each program input, ascending
  // By program input: the layout in which the program takes what it does not overwrite; null for
  // what it overwrites. Replaced by equal ones, so that comparing finds the same pointer.
  mutable std::vector<LayoutPtr> taken;
  // By program input: the layout for which the program was compiled, or null
  // (TapeInput::LayoutToTake).
  std::vector<LayoutPtr> asked;
  std::vector<int> starts;  // records whose starts are passed at run time, in slot order
  // Records that have starts, ascending: those whose starts are passed, needed or not, and those
  // whose starts are known.
  std::vector<int> late_starts, known_starts;
  std::shared_ptr<CompiledProgram> program;
  RecordingPtr recording;  // of the tape it was compiled from
  ProgramOptions options;  // with which it was compiled and loaded
  // Other recordings that were found equal, for the next tape that follows one of them.
  mutable std::vector<std::weak_ptr<const Recording>> equal;
  // The bytes on the heap of the program and of everything that it owns.
  int64_t HeapBytes() const;
  // The ops and key prefixes of the tape, for explain_compile.
  std::vector<const OpInfo*> ops;
  std::vector<uint64_t> prefixes;
};
using CachedProgramPtr = std::shared_ptr<CachedProgram>;

// True if `program` was compiled from a tape with the same records as `tape`, apart from starts. A
// tape that has followed the program's own recording has been compared already, call by call; other
// recordings are compared once.
bool SameTape(const CachedProgram& program, const Tape& tape);

class ProgramCache {
 public:
  // The programs for `key`, newest first. Keys may collide: compare with SameTape.
  std::vector<CachedProgramPtr> Find(const Hash128& key);
  // Adds a program, which stays until the next one comes, however large it is.
  void Insert(CachedProgramPtr program);
  // Notes that `program` has its graph and reasons. All but the last few such programs lose theirs.
  void NoteExplained(const std::shared_ptr<CompiledProgram>& program);
  void SetMostBytes(int64_t bytes);
  // Drops all programs; keys keep only so many bits from now on, for tests.
  void SetKeyBits(int bits) {
    Clear();
    key_bits_ = bits;
  }
  // How the tape differs from the cached program that is most like it.
  std::string Difference(const Tape& tape) const;
  void Clear();
  // Plans for graphs of other sizes.
  partition::EarlierPlans& plans() { return plans_; }
  // All programs, the last used first.
  const std::list<CachedProgramPtr>& recent() const { return recent_; }
  int64_t bytes() const { return bytes_; }
  size_t num_explained() const { return explained_.size(); }

 private:
  struct Entry {
    std::list<CachedProgramPtr>::iterator place;  // among `recent_`
    int64_t bytes = 0;
  };
  void DropOldest();
  Hash128 Kept(const Hash128& key) const { return key.FirstBits(key_bits_); }

  int64_t most_bytes_ = Options().program_memory;
  int key_bits_ = 128;
  int64_t bytes_ = 0;                   // of all entries
  std::list<CachedProgramPtr> recent_;  // front: the last used
  absl::flat_hash_map<const CachedProgram*, Entry> entries_;
  absl::flat_hash_map<Hash128, std::vector<CachedProgramPtr>> by_key_;
  std::deque<std::weak_ptr<CompiledProgram>> explained_;
  partition::EarlierPlans plans_;
};

}  // namespace spmd::trace
