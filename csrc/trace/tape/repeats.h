// SPDX-License-Identifier: Apache-2.0
// Decides where pending work runs unasked, since a loop that reads nothing would record for ever.
//
//   for x in loader:                 tape  a b c  a b c  a b c  …
//       total += loss(model(x))
//
// Ops. When a tape has grown long, its last records are compared with those before them. A *part*
// is a sequence of records that repeats: the ops are the same and read the same values, or the
// results of the previous part at the same position, or inputs that are new in each part and that
// nothing else holds any more (batches). The layers of a model repeat ops, too, but are no parts,
// since each has parameters of its own that stay alive. A tape ends between two parts, where the
// fewest values are live. From then on every tape that consists of repetitions of that part ends
// after the same number of them, so all are one program. If most of what was computed is still
// held, as in the forward pass of a training step, nothing ends. A chain of ops that takes no
// inputs may grow longer, since it may be read soon and is then one program.
//
// Bytes. If the inputs that nothing else holds have many bytes, the tape ends between parts, too,
// or at once if nothing repeats. A value that nothing holds when a tape ends is never computed.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

// For the session's tape. Thread safety: guarded by the session's lock.
class Repeats {
 public:
  // Whether WhyEnd should be called. Cheap, since it is called for every op that is recorded.
  bool IsDue(const Tape& tape) const {
    const bool same = tape.number() == tape_;
    return tape.num_records() >= (same ? next_records_ : first_records_) ||
           tape.uploaded_bytes() >= (same ? next_bytes_ : kFirstBytes);
  }
  // The reason why the tape ends before the next op is recorded, or null if it continues.
  // `in_backward` says that a backward pass is running, during which no tape ends.
  const char* WhyEnd(const Tape& tape, bool in_backward);

 private:
  static constexpr int64_t kFirstRecords = 512;
  static constexpr int64_t kFirstBytes = int64_t{64} << 20;

  void Begin(const Tape& tape);
  const char* Look(const Tape& tape);
  bool ConsistsOfPart(const Tape& tape) const;
  void NotePart(const Tape& tape, int64_t period);

  // The ops of the part, repeated as often as in a tape.
  std::vector<const OpInfo*> part_;
  int64_t first_records_ = kFirstRecords;  // at which a new tape is examined

  uint64_t ended_ = 0;  // the last tape that ended between parts

  uint64_t tape_ = 0;        // the tape that was examined; the fields below are about it
  bool after_part_ = false;  // it began where another one ended between parts
  int64_t next_records_ = 0, next_bytes_ = 0;
  int64_t period_ = 0;  // of the part that was found; the tape ends at `end_` records
  int64_t end_ = 0;
};

}  // namespace spmd::trace
