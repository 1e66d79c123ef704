// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/program_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/program/heap_bytes.h"
#include "csrc/trace/program/difference.h"
#include "csrc/trace/tape/same_records.h"
#include "csrc/trace/tape/starts.h"

namespace spmd::trace {

static int64_t HeapBytes(const OutputSpec& output) { return spmd::HeapBytes(output.apart); }

int64_t CompiledProgram::HeapBytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof(CompiledProgram)) + ir::HeapBytes(traced) +
                  spmd::HeapBytes(compiled.decomposed) +
                  (loaded != nullptr ? loaded->HeapBytes() : 0);
  for (const auto& [name, words] : input_names) {
    bytes += static_cast<int64_t>(2 * sizeof(std::string)) + spmd::HeapBytes(words);
  }
  return bytes;
}

int64_t CachedProgram::HeapBytes() const {
  using spmd::HeapBytes;
  int64_t bytes = static_cast<int64_t>(sizeof(CachedProgram)) + HeapBytes(outputs) +
                  HeapBytes(layouts) + HeapBytes(inputs) + HeapBytes(starts) +
                  HeapBytes(late_starts) + HeapBytes(known_starts) + HeapBytes(ops) +
                  HeapBytes(prefixes) + program->HeapBytes();
  // The bytes of a layout with its reference count.
  constexpr int64_t kLayout = 512;
  bytes += kLayout * static_cast<int64_t>(layouts.size() + taken.size() + asked.size());
  if (recording != nullptr) bytes += recording->HeapBytes();
  return bytes;
}

bool SameTape(const CachedProgram& program, const Tape& tape) {
  const Recording& theirs = *program.recording;
  const Recording& mine = tape.recording();
  if (&mine == &theirs) return true;
  const RecordingPtr& lead = tape.lead_pointer();
  if (lead != nullptr) {
    for (const auto& equal : program.equal) {
      if (equal.lock() == lead) return true;
    }
  }
  if (!SameButForStarts(theirs, mine)) return false;
  constexpr size_t kMostEqual = 8;
  if (lead != nullptr) {
    std::erase_if(program.equal, [](const auto& equal) { return equal.expired(); });
    if (program.equal.size() < kMostEqual) program.equal.push_back(lead);
  }
  return true;
}

std::vector<CachedProgramPtr> ProgramCache::Find(const Hash128& key) {
  const auto it = by_key_.find(Kept(key));
  if (it == by_key_.end()) return {};
  for (const CachedProgramPtr& p : it->second) {
    recent_.splice(recent_.begin(), recent_, entries_.at(p.get()).place);
  }
  return {it->second.rbegin(), it->second.rend()};
}

void ProgramCache::Insert(CachedProgramPtr program) {
  if (program->program->explained) {
    NoteExplained(program->program);
  } else {
    program->program->compiled.graph = ir::Graph();
  }
  by_key_[Kept(program->key)].push_back(program);
  recent_.push_front(std::move(program));
  entries_[recent_.front().get()].place = recent_.begin();
  const int64_t bytes = recent_.front()->HeapBytes();
  entries_[recent_.front().get()].bytes = bytes;
  bytes_ += bytes;
  while (bytes_ > most_bytes_ && recent_.size() > 1) DropOldest();
}

void ProgramCache::DropOldest() {
  const CachedProgramPtr oldest = recent_.back();
  recent_.pop_back();
  bytes_ -= entries_.at(oldest.get()).bytes;
  entries_.erase(oldest.get());
  std::vector<CachedProgramPtr>& same = by_key_[Kept(oldest->key)];
  same.erase(std::remove(same.begin(), same.end(), oldest), same.end());
  if (same.empty()) by_key_.erase(Kept(oldest->key));
}

void ProgramCache::NoteExplained(const std::shared_ptr<CompiledProgram>& program) {
  constexpr size_t kMostExplained = 2;
  explained_.push_back(program);
  while (explained_.size() > kMostExplained) {
    const std::shared_ptr<CompiledProgram> first = explained_.front().lock();
    explained_.pop_front();
    if (first == nullptr || first == program) continue;
    first->explained = false;
    first->compiled.graph = ir::Graph();
    first->compiled.reasons = propagate::Reasons();
  }
}

void ProgramCache::SetMostBytes(int64_t bytes) {
  most_bytes_ = bytes;
  while (bytes_ > most_bytes_ && recent_.size() > 1) DropOldest();
}

void ProgramCache::Clear() {
  recent_.clear();
  entries_.clear();
  bytes_ = 0;
  by_key_.clear();
  plans_.Clear();
}

std::string ProgramCache::Difference(const Tape& tape) const {
  const CachedProgram* nearest = nullptr;
  const std::vector<uint64_t> prefixes = tape.recording().RecordKeys();
  size_t common = 0;
  int looked_at = 0;
  for (const CachedProgramPtr& p : recent_) {
    if (++looked_at > 32) break;
    const size_t n = std::min(p->prefixes.size(), prefixes.size());
    size_t same = 0;
    while (same < n && p->prefixes[same] == prefixes[same]) ++same;
    if (nearest == nullptr || same > common) {
      nearest = p.get();
      common = same;
    }
  }
  if (nearest == nullptr) return "first program";
  const std::string which = absl::StrCat("program ", nearest->program->number);
  const size_t mine = tape.records().size(), other = nearest->ops.size();
  if (common == mine && common == other) {
    const std::vector<Record>& records = nearest->recording->records;
    for (size_t r = 0; r < mine; ++r) {
      if (!SameStarts(records[r], records[r].args, tape.ArgumentsOf(static_cast<int>(r)))) {
        return DescribeDifference(*nearest->recording, tape.recording(), r, which);
      }
    }
    return absl::StrCat("same ops as ", which, ", with other marks or options");
  }
  if (common == mine) return absl::StrCat("the first ", mine, " of the ", other, " ops of ", which);
  if (common == other) {
    return absl::StrCat("the ", other, " ops of ", which, " and ", mine - other, " more, from ",
                        tape.records()[common].op->name);
  }
  return DescribeDifference(*nearest->recording, tape.recording(), common, which);
}

}  // namespace spmd::trace
