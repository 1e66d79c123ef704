// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/repeats.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace spmd::trace {

namespace {

// A tape with fewer records is not worth a program of its own.
constexpr int64_t kLeastRecords = 128;
// Ops that only read results of earlier ops, as in a chain whose end is read, are one program up to
// this many records.
constexpr int64_t kLongestChain = 4096;
// With more pending records, or bytes that nothing else holds, the tape ends at once. A training
// step may be as long as a step can be, since it is one program only if nothing ends it.
constexpr int64_t kMostRecords = 50000;
constexpr int64_t kMostRecordsOfStep = 2000000;
constexpr int64_t kMostBytes = int64_t{512} << 20;
// The bytes that an input takes in addition to its data.
constexpr int64_t kInput = 256;

int64_t Later(int64_t now) { return now + now / 4; }

// Inputs that only the tape holds: no Buffer will read them again, and they are not the old values
// of Buffers that the tape has written, which are updated in place.
class Dropped {
 public:
  explicit Dropped(const Tape& tape) : tape_(tape), before_(tape.num_values()) {
    tape.bindings().ForEach([&](Buffer&, TapeId before) {
      if (before != kNoId) before_[before] = true;
    });
  }
  bool Has(TapeId input) const { return !before_[input] && tape_.value(input).use_count() == 1; }
  int64_t Bytes() const {
    int64_t bytes = 0;
    for (const TapeInput& input : tape_.inputs()) {
      const Value& value = *tape_.value(input.id);
      if (!value.host.defined() || !Has(input.id)) continue;
      bytes += static_cast<int64_t>(value.host.nbytes()) + kInput;
    }
    return bytes;
  }

 private:
  const Tape& tape_;
  std::vector<bool> before_;
};

// Compares the end of a tape with what precedes it, to find what repeats.
class Comparison {
 public:
  // Requires: the tape is at its end.
  explicit Comparison(const Tape& tape)
      : tape_(tape),
        records_(tape.records()),
        size_(static_cast<int64_t>(records_.size())),
        dropped_(tape),
        first_use_(tape.num_values(), -1) {
    for (int64_t r = 0; r < size_; ++r) {
      for (const TapeId id : records_[r].operands) {
        if (id != kNoId && first_use_[id] < 0) first_use_[id] = static_cast<int32_t>(r);
      }
    }
  }

  // The length of the shortest part that the tape ends in, twice or more; 0: none.
  int64_t Period() const {
    for (int64_t period = 1; 2 * period <= size_; ++period) {
      if (Repeats(period)) return period;
    }
    return 0;
  }

  // A part that takes no inputs has to be there so often that no two ops that happen to be alike
  // are taken for it.
  bool Repeats(int64_t period) const {
    if (!AreSame(period, period)) return false;
    if (!TakesInputs(period) && !AreSame(kLeastRecords, period)) return false;
    return HasItsOwnInputs(period);
  }

  // The record in the last part but one at which a part begins: where the fewest values are live,
  // and among such records the first one that reads a new input. -1 if all are in backward passes.
  int64_t Boundary(int64_t period) const {
    const int64_t begin = size_ - 2 * period;
    const std::vector<int64_t> over = ValuesThatGoOver(begin, period);
    int64_t best = -1;
    for (int64_t k = 0; k < period; ++k) {
      if (records_[begin + k].task != 0) continue;
      const bool better =
          best < 0 || over[k] < over[best] ||
          (over[k] == over[best] && MeetsInput(begin + k) && !MeetsInput(begin + best));
      if (better) best = k;
    }
    return best < 0 ? -1 : begin + best;
  }

  // Whether the last part reads inputs that the parts before it did not.
  bool TakesInputs(int64_t period) const {
    for (int64_t r = size_ - period; r < size_; ++r) {
      if (MeetsInput(r)) return true;
    }
    return false;
  }

  int64_t dropped_bytes() const { return dropped_.Bytes(); }

 private:
  bool IsInput(TapeId id) const { return tape_.origin(id).record < 0; }

  // For each record from `begin` on, the number of earlier records whose results are read from
  // there on. A result that is read more than two parts later is read by all parts, and is not
  // counted.
  std::vector<int64_t> ValuesThatGoOver(int64_t begin, int64_t period) const {
    const int64_t first = std::max<int64_t>(begin - period, 0);
    std::vector<int64_t> last_use(begin + period - first, -1);
    for (int64_t r = first; r < size_; ++r) {
      for (const TapeId id : records_[r].operands) {
        const int64_t maker = id == kNoId ? -1 : tape_.origin(id).record;
        if (maker < first || maker >= begin + period || r >= maker + 2 * period) continue;
        last_use[maker - first] = r;
      }
    }
    std::vector<int64_t> over(period + 1);  // at first the differences between neighbours
    for (int64_t r = first; r < begin + period; ++r) {
      const int64_t from = std::max(r + 1, begin);
      const int64_t to = std::min(last_use[r - first], begin + period - 1);
      if (from > to) continue;
      ++over[from - begin];
      --over[to + 1 - begin];
    }
    for (int64_t k = 1; k <= period; ++k) over[k] += over[k - 1];
    return over;
  }

  bool MeetsInput(int64_t r) const {
    return std::any_of(records_[r].operands.begin(), records_[r].operands.end(), [&](TapeId id) {
      return id != kNoId && IsInput(id) && first_use_[id] == r;
    });
  }

  // Whether the last `count` records do the same as those one period earlier.
  bool AreSame(int64_t count, int64_t period) const {
    if (count + period > size_) return false;
    for (int64_t r = size_; r-- > size_ - count;) {
      if (!Same(r, period)) return false;
    }
    return true;
  }

  // Whether record r does the same as the record one period earlier.
  bool Same(int64_t r, int64_t period) const {
    const Record &a = records_[r], &b = records_[r - period];
    if (a.op != b.op || a.operands.size() != b.operands.size() || a.num_results != b.num_results ||
        (a.task != 0) != (b.task != 0)) {
      return false;
    }
    for (size_t k = 0; k < a.operands.size(); ++k) {
      if (!SameOperand(r, a.operands[k], b.operands[k], period)) return false;
    }
    return true;
  }

  // The same for operands a and b of the two records.
  bool SameOperand(int64_t r, TapeId a, TapeId b, int64_t period) const {
    if (a == b) return true;
    if (a == kNoId || b == kNoId || IsInput(a) != IsInput(b)) return false;
    // Inputs that are new in each part. (Parameters of layers have the same distance, but in all
    // parts.)
    if (IsInput(a)) {
      const int64_t begin = size_ - ((size_ - 1 - r) / period + 1) * period;  // of the part of r
      return first_use_[a] >= begin && first_use_[a] - first_use_[b] == period;
    }
    const Origin &x = tape_.origin(a), &y = tape_.origin(b);
    return x.record - y.record == period &&
           a - records_[x.record].first_result == b - records_[y.record].first_result;
  }

  // Distinguishes parts from the layers of a model: of the inputs that are new in each part, those
  // of the last but one are no longer held, or are fewer than the inputs that both parts read.
  bool HasItsOwnInputs(int64_t period) const {
    absl::flat_hash_set<TapeId> shared;
    int64_t held = 0;
    for (int64_t r = size_ - 2 * period; r < size_ - period; ++r) {
      for (size_t k = 0; k < records_[r].operands.size(); ++k) {
        const TapeId id = records_[r].operands[k];
        if (id == kNoId || !IsInput(id)) continue;
        if (id == records_[r + period].operands[k]) {
          shared.insert(id);
        } else if (first_use_[id] == r && !dropped_.Has(id)) {
          ++held;
        }
      }
    }
    return held == 0 || held < static_cast<int64_t>(shared.size());
  }

  const Tape& tape_;
  const std::vector<Record>& records_;
  const int64_t size_;
  const Dropped dropped_;
  std::vector<int32_t> first_use_;  // by value, the record
};

// Whether little of what was computed is held. Values that a backward pass will need should stay in
// one program with it.
int64_t Held(const Tape& tape) {
  int64_t held = 0;
  tape.bindings().ForEach([&](Buffer& buffer, TapeId) { held += buffer.pending() ? 1 : 0; });
  return held;
}
bool FewAreHeld(const Tape& tape) {
  const int64_t share = c10::GradMode::is_enabled() ? 8 : 2;
  return Held(tape) <= std::max<int64_t>(8, tape.num_records() / share);
}

// Whether a training step is being recorded: a backward pass has run on this tape (its optimizer's
// step would end the tape), or values are held that one may need. Checkpointed layers hold little.
bool IsInStep(const Tape& tape) {
  const std::vector<Record>& records = tape.records();
  if (std::any_of(records.begin(), records.end(), [](const Record& r) { return r.task != 0; })) {
    return true;
  }
  return c10::GradMode::is_enabled() && Held(tape) > 32;
}

}  // namespace

void Repeats::Begin(const Tape& tape) {
  after_part_ = tape.number() == ended_ + 1;
  tape_ = tape.number();
  next_records_ = first_records_;
  next_bytes_ = kFirstBytes;
  period_ = end_ = 0;
}

bool Repeats::ConsistsOfPart(const Tape& tape) const {
  const std::vector<Record>& records = tape.records();
  if (part_.empty() || records.size() % part_.size() != 0) return false;
  for (size_t r = 0; r < records.size(); ++r) {
    if (records[r].op != part_[r % part_.size()]) return false;
  }
  return true;
}

// The first part on a tape may have records that the others lack, since views of parameters are
// read once. A tape that began between parts is like the next one, so it is taken as it is.
void Repeats::NotePart(const Tape& tape, int64_t period) {
  const std::vector<Record>& records = tape.records();
  part_.clear();
  if (after_part_) {
    for (const Record& r : records) part_.push_back(r.op);
  } else {
    while (static_cast<int64_t>(part_.size()) < kLeastRecords) {
      for (size_t r = records.size() - period; r < records.size(); ++r) {
        part_.push_back(records[r].op);
      }
    }
  }
  first_records_ = std::min<int64_t>(kFirstRecords, static_cast<int64_t>(part_.size()));
}

const char* Repeats::WhyEnd(const Tape& tape, bool in_backward) {
  if (tape.number() != tape_) Begin(tape);
  // Within a recording, whose end is near enough.
  if (!tape.AtEnd()) return nullptr;
  const int64_t n = tape.num_records();
  if (n > kMostRecordsOfStep ||
      (n > kMostRecords && n >= next_records_ && !in_backward && !IsInStep(tape))) {
    return "ops that wait";
  }
  if (in_backward) return nullptr;
  if (ConsistsOfPart(tape) && FewAreHeld(tape)) {
    ended_ = tape.number();
    return "repeats";
  }
  return Look(tape);
}

const char* Repeats::Look(const Tape& tape) {
  const int64_t n = tape.num_records();
  const int64_t bytes = tape.uploaded_bytes();
  if (n >= kFirstRecords || bytes >= kFirstBytes) {
    const Comparison comparison(tape);
    if (n >= end_) {
      const bool go_on = end_ > 0 && comparison.Repeats(period_);
      const bool worth_it = n >= kFirstRecords || comparison.dropped_bytes() >= kFirstBytes / 2;
      if (!go_on) period_ = worth_it ? comparison.Period() : 0;
      if (period_ > 0 && n < kLongestChain && !comparison.TakesInputs(period_)) period_ = 0;
      const int64_t begin = period_ > 0 ? comparison.Boundary(period_) : -1;
      const bool here = begin >= 0 && (go_on || begin + 2 * period_ == n);
      if (here && FewAreHeld(tape)) {
        NotePart(tape, period_);
        ended_ = tape.number();
        return "repeats";
      }
      // If much is held, a later comparison would find the same.
      end_ = begin < 0 || here ? 0 : begin + 2 * period_;
    }
    if (comparison.dropped_bytes() >= kMostBytes) return "bytes that wait";
  }
  const auto size = static_cast<int64_t>(part_.size());
  next_records_ = end_ > 0 ? end_ : std::max(kFirstRecords, Later(n));
  if (n < kFirstRecords && size > 0) next_records_ = std::min(next_records_, (n / size + 1) * size);
  next_bytes_ = std::max(kFirstBytes, Later(bytes));
  return nullptr;
}

}  // namespace spmd::trace
