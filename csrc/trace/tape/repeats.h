// SPDX-License-Identifier: Apache-2.0
// Where pending work runs by itself: a loop that reads nothing would record for ever.
//
//   for x in loader:                 tape  a b c  a b c  a b c  …
//       total += loss(model(x))
//
// Ops. When a tape has grown long its last records are compared with those before them: a *part*
// repeats where the ops are the same and read the same values, or the results of the part before at
// the same place, or inputs that are new in each part and that nobody else holds any more
// (batches). The layers of a model repeat ops, too, but each has parameters of its own, which live
// on: no part. A tape ends between two parts, where fewest values go over from one to the next.
// From then on every tape that consists of that part, some times over, ends with it: all are one
// program. Nothing ends where most of what was computed is still held, as in the forward pass of a
// training step. A chain of ops that takes no inputs is worth more: it may be read soon, and is
// then one program.
//
// Bytes. A tape whose inputs that nobody else holds have many bytes ends between parts, too; if
// nothing repeats, where it is.
//
// What nobody holds when a tape ends is never computed.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

// Of the session's tape. Thread safety: guarded by the session's lock.
class Repeats {
 public:
  // Whether to ask WhyEnd. Cheap: asked with every op that is recorded.
  bool IsDue(const Tape& tape) const {
    const bool same = tape.number() == tape_;
    return tape.num_records() >= (same ? next_records_ : first_records_) ||
           tape.uploaded_bytes() >= (same ? next_bytes_ : kFirstBytes);
  }
  // What the tape ends for, before the next op is recorded; null: it goes on. `in_backward`: a
  // backward pass is running, in the midst of which nothing ends.
  const char* WhyEnd(const Tape& tape, bool in_backward);

 private:
  static constexpr int64_t kFirstRecords = 512;
  static constexpr int64_t kFirstBytes = int64_t{64} << 20;

  void Begin(const Tape& tape);
  const char* Look(const Tape& tape);
  bool ConsistsOfPart(const Tape& tape) const;
  void NotePart(const Tape& tape, int64_t period);

  // The ops of the part, as often as a tape should have them.
  std::vector<const OpInfo*> part_;
  int64_t first_records_ = kFirstRecords;  // of a new tape, when it is looked at

  uint64_t ended_ = 0;  // the last tape that ended between parts

  uint64_t tape_ = 0;        // that was looked at; what follows is of it
  bool after_part_ = false;  // it began where another one ended between parts
  int64_t next_records_ = 0, next_bytes_ = 0;
  int64_t period_ = 0;  // found; it is to end when it has `end_` records
  int64_t end_ = 0;
};

}  // namespace spmd::trace
